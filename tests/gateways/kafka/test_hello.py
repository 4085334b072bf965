"""Whom a node believes to be a node, and whom it does not. Pure: both sides in one process, without a socket."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.gateways.kafka import hello
from headrace.gateways.kafka.hello import ANYBODY, OPERATOR, Answerer, Caller, Membership, RefusedError

COUNTER = itertools.count()


def nonce(size: int) -> bytes:
    return hashlib.sha512(str(next(COUNTER)).encode()).digest()[:size]


def pair(
    one: Membership, other: Membership, *, target: int | None = None, local: bool = False
) -> tuple[Caller, Answerer]:
    caller = Caller(one, nonce, target_id=other.node_id if target is None else target, local=local)
    return caller, Answerer(other, nonce, local=local)


def converse(caller: Caller, answerer: Answerer) -> None:
    said: bytes | None = caller.hello()
    while said is not None:
        said = caller.answer(answerer.answer(said))


def test_two_nodes_with_one_secret_believe_each_other():
    caller, answerer = pair(Membership(1, "c", "s"), Membership(2, "c", "s"))
    converse(caller, answerer)
    assert (caller.done, caller.peer, answerer.peer, caller.version) == (True, 2, 1, hello.VERSIONS[1])


def test_nodes_of_one_machine_need_no_secret():
    caller, answerer = pair(Membership(1, "c"), Membership(2, "c"), local=True)
    converse(caller, answerer)
    assert answerer.peer == 1


def test_a_newcomer_learns_the_cluster_from_a_seed_it_can_check():
    caller, answerer = pair(Membership(7, "", "s"), Membership(2, "c", "s"), target=ANYBODY)
    converse(caller, answerer)
    assert (caller.cluster_id, caller.peer, answerer.peer) == ("c", 2, 7)


def test_an_operator_proves_the_same_and_is_no_node():
    caller, answerer = pair(Membership(OPERATOR, "", "s"), Membership(2, "c", "s"), target=ANYBODY)
    converse(caller, answerer)
    assert (caller.done, answerer.peer) == (True, OPERATOR)


@pytest.mark.parametrize(
    ("one", "other", "target", "local", "word"),
    [
        pytest.param(Membership(OPERATOR, "", "t"), Membership(2, "c", "s"), -1, True, "proof", id="operator, wrong"),
        pytest.param(Membership(OPERATOR, ""), Membership(2, "c"), -1, False, "secret", id="operator, far, no secret"),
        pytest.param(Membership(-3, "", "s"), Membership(2, "c", "s"), -1, True, "the caller says", id="no such role"),
        pytest.param(Membership(1, "c"), Membership(2, "c"), 2, False, "cluster.secret", id="far and no secret"),
        pytest.param(Membership(1, "c", "s"), Membership(2, "c"), 2, False, "cluster.secret", id="one secret, far"),
        pytest.param(Membership(1, "c", "s"), Membership(2, "c"), 2, True, "cluster.secret", id="one secret, near"),
        pytest.param(Membership(1, "c", "s"), Membership(2, "c", "t"), 2, True, "cluster.secret", id="two secrets"),
        pytest.param(Membership(1, "c", "s"), Membership(2, "d", "s"), 2, True, "cluster", id="two clusters"),
        pytest.param(Membership(1, "c", "s"), Membership(2, "", "s"), 2, True, "yet", id="an answerer without cluster"),
        pytest.param(Membership(1, "c", "s"), Membership(3, "c", "s"), 2, True, "looks for node 2", id="another node"),
        pytest.param(Membership(2, "c", "s"), Membership(2, "c", "s"), ANYBODY, True, "node 2", id="a double"),
        pytest.param(Membership(-5, "c", "s"), Membership(2, "c", "s"), 2, True, "node -5", id="no such node"),
        pytest.param(
            Membership(1, "c", "s", (3, 4)), Membership(2, "c", "s", (1, 2)), 2, True, "upgrade", id="too new"
        ),
    ],
)
def test_a_stranger_is_refused_with_a_reason(one: Membership, other: Membership, target: int, local: bool, word: str):
    caller, answerer = pair(one, other, target=target, local=local)
    with pytest.raises(RefusedError, match=word):
        converse(caller, answerer)
    assert answerer.peer is None and not caller.done


def test_releases_that_overlap_speak_the_newest_version_that_both_know():
    caller, answerer = pair(Membership(1, "c", "s", (1, 3)), Membership(2, "c", "s", (2, 5)))
    converse(caller, answerer)
    assert (caller.version, answerer.version) == (3, 3)


def test_a_proof_is_worth_nothing_in_another_conversation():
    caller, answerer = pair(Membership(1, "c", "s"), Membership(2, "c", "s"))
    heard = caller.answer(answerer.answer(caller.hello()))
    assert heard is not None
    again = Answerer(Membership(2, "c", "s"), nonce, local=False)
    again.answer(caller.hello())
    with pytest.raises(RefusedError):
        again.answer(heard)


def test_an_answerers_proof_cannot_be_sent_back_to_it():
    us = Membership(2, "c", "s")
    answerer = Answerer(us, nonce, local=False)
    caller = Caller(Membership(1, "c", "?"), nonce, target_id=2, local=False)
    challenge = hello._from_answerer.decode(answerer.answer(caller.hello()))
    assert isinstance(challenge, hello.Challenge)
    with pytest.raises(RefusedError):
        answerer.answer(hello._encode(hello.Answer(challenge.proof)))


def test_one_guess_per_connection():
    answerer = Answerer(Membership(2, "c", "s"), nonce, local=False)
    answerer.answer(Caller(Membership(1, "c", "?"), nonce, target_id=2, local=False).hello())
    with pytest.raises(RefusedError):
        answerer.answer(hello._encode(hello.Answer(bytes(32))))
    with pytest.raises(ProtocolError):
        answerer.answer(hello._encode(hello.Answer(bytes(32))))


def test_a_proof_before_a_challenge_breaks_the_wire():
    with pytest.raises(ProtocolError):
        Answerer(Membership(2, "c", "s"), nonce, local=False).answer(hello._encode(hello.Answer(bytes(32))))


def test_a_welcome_before_the_answerer_has_proved_itself_is_not_taken():
    caller = Caller(Membership(1, "c", "s"), nonce, target_id=2, local=False)
    with pytest.raises(ProtocolError):
        caller.answer(hello._encode(hello.Welcome()))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_calmly_on_both_sides(content: bytes):
    answerer = Answerer(Membership(2, "c", "s"), nonce, local=True)
    caller = Caller(Membership(1, "c", "s"), nonce, target_id=2, local=True)
    for side in (answerer, caller):
        with pytest.raises((ProtocolError, RefusedError)):
            side.answer(content)
    assert answerer.peer is None and not caller.done


@given(st.integers(0, 200), st.integers(0, 7))
def test_a_flipped_bit_anywhere_ends_the_handshake_or_changes_nothing(place: int, bit: int):
    caller, answerer = pair(Membership(1, "c", "s"), Membership(2, "c", "s"))
    challenge = bytearray(answerer.answer(caller.hello()))
    challenge[place % len(challenge)] ^= 1 << bit
    try:
        said = caller.answer(bytes(challenge))
        assert said is not None
        answerer.answer(said)
    except (ProtocolError, RefusedError):
        assert answerer.peer is None
    else:
        assert answerer.peer == 1


@pytest.mark.parametrize(
    ("one", "other", "local"),
    [
        (("127.0.0.1", 1), ("127.0.0.9", 2), True),
        (("::1", 1, 0, 0), ("127.0.0.1", 2), True),
        (("10.0.0.1", 1), ("127.0.0.1", 2), False),
        (("127.0.0.1.evil", 1), ("127.0.0.1", 2), False),
        (None, ("127.0.0.1", 2), False),
        ("/run/socket", "", False),
    ],
)
def test_what_counts_as_one_machine(one: object, other: object, local: bool):
    assert hello.both_local(one, other) is local
