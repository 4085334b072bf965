"""How two nodes of a cluster come to believe each other: the private API PeerHello.

    caller                                             answerer
    Hello(versions, cluster, who, whom, nonce)    ->
                                                  <-   Challenge(version, cluster, who, nonce, proof)
    Answer(proof)                                 ->
                                                  <-   Welcome

Rules:
- A proof is HMAC-SHA256 with `cluster.secret` over the direction, both nonces, the cluster's id, both node ids and the
  chosen version: it fits this conversation and no other. Proofs are compared in constant time.
- Both sides prove: the answerer first, so that a caller tells nothing to a stranger.
- Without a secret, only an address of this machine is believed, and only by an address of this machine.
- A caller that does not know its cluster yet says "" and learns the id; the proof covers what it learned.
- A person who looks after the cluster says OPERATOR in place of a node's id, and proves the same. An operator may ask
  what only operators may; it is no node, and what is for nodes is not for it.
- Each side names a range of versions; the highest that both know is spoken. New fields go to the ends of the structs.
- Pure: bytes in, bytes out. Who delays and closes is the connection's business.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import msgspec

from headrace.core.errors import HeadraceError, ProtocolError

API_KEY: Final = 32000
API_VERSION: Final = 0
# Of what nodes say to each other, the oldest and the newest that we speak. 2: PeerForward has a ticket.
VERSIONS: Final = (1, 2)
NONCE_BYTES: Final = 32
MESSAGE_BYTES: Final = 4096
ANYBODY: Final = -1  # the caller knows an address, not who lives there
OPERATOR: Final = -2  # the caller is no node: a command, and somebody who knows the secret


class RefusedError(HeadraceError):
    """The other side is not believed, or does not believe us. The sentence says why."""


@dataclass(slots=True)
class Membership:
    """Who we are among the nodes."""

    node_id: int
    cluster_id: str  # "": not known yet
    secret: str | None = None
    versions: tuple[int, int] = VERSIONS
    release: str = ""


class Hello(msgspec.Struct, frozen=True, tag="hello", array_like=True):
    versions: tuple[int, int]
    cluster_id: str
    node_id: int
    target_id: int
    nonce: bytes
    release: str = ""


class Challenge(msgspec.Struct, frozen=True, tag="challenge", array_like=True):
    version: int
    cluster_id: str
    node_id: int
    nonce: bytes
    proof: bytes
    release: str = ""


class Answer(msgspec.Struct, frozen=True, tag="answer", array_like=True):
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome", array_like=True):
    pass


class Refusal(msgspec.Struct, frozen=True, tag="refusal", array_like=True):
    reason: str


_encode = msgspec.msgpack.Encoder().encode
_from_caller = msgspec.msgpack.Decoder(Hello | Answer)
_from_answerer = msgspec.msgpack.Decoder(Challenge | Welcome | Refusal)


class Answerer:
    """The side that was called. `peer` is the caller's id (or OPERATOR) as soon as it has proved it."""

    def __init__(self, us: Membership, nonce: Callable[[int], bytes], *, local: bool) -> None:
        """`local`: both addresses are this machine's."""
        self._us = us
        self._nonce = nonce
        self._local = local
        self._hello: Hello | None = None
        self._expected = b""
        self.peer: int | None = None
        self.version = 0

    def answer(self, message: bytes) -> bytes:
        """Raises RefusedError (tell it with `refusal`) or ProtocolError."""
        if len(message) > MESSAGE_BYTES:
            raise ProtocolError("a PeerHello of that size is none")
        try:
            found = _from_caller.decode(message)
        except (msgspec.MsgspecError, ValueError) as error:  # bad UTF-8 is a ValueError
            raise ProtocolError(f"PeerHello cannot be read: {error}") from None
        if isinstance(found, Hello):
            return self._challenge(found)
        return self._welcome(found)

    def _challenge(self, hello: Hello) -> bytes:
        us = self._us
        if self._hello is not None:
            raise ProtocolError("a second PeerHello on one connection")
        if len(hello.nonce) != NONCE_BYTES:
            raise ProtocolError("the nonce of a PeerHello has another length")
        must_be_near(us, self._local)
        version = common_version(us.versions, hello.versions)
        if not us.cluster_id:
            raise RefusedError(f"node {us.node_id} does not belong to a cluster yet")
        if hello.cluster_id not in ("", us.cluster_id):
            raise RefusedError(
                f"node {us.node_id} belongs to cluster {us.cluster_id}, and the caller to {hello.cluster_id}"
            )
        if hello.target_id not in (ANYBODY, us.node_id):
            raise RefusedError(f"this is node {us.node_id}, and the caller looks for node {hello.target_id}")
        if hello.node_id == us.node_id or (hello.node_id < 0 and hello.node_id != OPERATOR):
            raise RefusedError(f"the caller says that it is node {hello.node_id}, and that is the one it called")
        nonce = self._nonce(NONCE_BYTES)
        self._hello, self.version = hello, version
        facts = (hello.nonce, nonce, us.cluster_id, hello.node_id, us.node_id, version)
        self._expected = prove(us.secret, "caller", *facts)
        return _encode(
            Challenge(version, us.cluster_id, us.node_id, nonce, prove(us.secret, "answerer", *facts), us.release)
        )

    def _welcome(self, answer: Answer) -> bytes:
        hello, self._hello = self._hello, None
        if hello is None or self.peer is not None:
            raise ProtocolError("the answer to a challenge that was not given")
        if not hmac.compare_digest(answer.proof, self._expected):
            raise RefusedError("the proof is wrong: do both nodes have the same cluster.secret?")
        self.peer = hello.node_id
        self._hello = hello
        return _encode(Welcome())


class Caller:
    """The side that calls: `hello` goes out, `answer` takes what comes back. `done` when we are welcome."""

    def __init__(self, us: Membership, nonce: Callable[[int], bytes], *, target_id: int, local: bool) -> None:
        self._us = us
        self._target_id = target_id
        self._local = local
        self._nonce = nonce(NONCE_BYTES)
        self._challenged = False
        self.peer: int | None = None
        self.version = 0
        self.cluster_id = ""
        self.done = False

    def hello(self) -> bytes:
        us = self._us
        must_be_near(us, self._local)
        return _encode(Hello(us.versions, us.cluster_id, us.node_id, self._target_id, self._nonce, us.release))

    def answer(self, message: bytes) -> bytes | None:
        """What to send next; None when we are welcome. Raises RefusedError or ProtocolError."""
        try:
            found = _from_answerer.decode(message)
        except (msgspec.MsgspecError, ValueError) as error:  # bad UTF-8 is a ValueError
            raise ProtocolError(f"the answer to PeerHello cannot be read: {error}") from None
        if isinstance(found, Refusal):
            raise RefusedError(found.reason[:500])
        if isinstance(found, Challenge) and not self._challenged:
            return self._respond(found)
        if isinstance(found, Welcome) and self._challenged:
            self.done = True
            return None
        raise ProtocolError("an answer to PeerHello that does not fit")

    def _respond(self, challenge: Challenge) -> bytes:
        us = self._us
        if us.cluster_id not in ("", challenge.cluster_id):
            raise RefusedError(f"node {challenge.node_id} belongs to another cluster, {challenge.cluster_id}")
        if self._target_id not in (ANYBODY, challenge.node_id) or challenge.node_id == us.node_id:
            raise RefusedError(f"node {challenge.node_id} answered where node {self._target_id} was looked for")
        if not us.versions[0] <= challenge.version <= us.versions[1]:
            raise RefusedError(f"node {challenge.node_id} wants version {challenge.version}, which we do not speak")
        facts = (
            self._nonce,
            challenge.nonce,
            challenge.cluster_id,
            us.node_id,
            challenge.node_id,
            challenge.version,
        )
        if not hmac.compare_digest(challenge.proof, prove(us.secret, "answerer", *facts)):
            raise RefusedError(f"node {challenge.node_id}'s proof is wrong: does it have the same cluster.secret?")
        self._challenged = True
        self.peer, self.version, self.cluster_id = challenge.node_id, challenge.version, challenge.cluster_id
        return _encode(Answer(prove(us.secret, "caller", *facts)))


def refusal(error: RefusedError) -> bytes:
    return _encode(Refusal(str(error)))


def prove(
    secret: str | None,
    direction: str,
    caller_nonce: bytes,
    answerer_nonce: bytes,
    cluster_id: str,
    caller_id: int,
    answerer_id: int,
    version: int,
) -> bytes:
    facts = (direction, caller_nonce, answerer_nonce, cluster_id, caller_id, answerer_id, version)
    return hmac.new((secret or "").encode(), _encode(facts), hashlib.sha256).digest()


def common_version(ours: tuple[int, int], theirs: tuple[int, int]) -> int:
    version = min(ours[1], theirs[1])
    if version < max(ours[0], theirs[0]):
        raise RefusedError(
            f"this node speaks versions {ours[0]} to {ours[1]} of the cluster's protocol, the other {theirs[0]} to "
            f"{theirs[1]}: upgrade by one release at a time"
        )
    return version


def must_be_near(us: Membership, local: bool) -> None:
    if not us.secret and not local:
        raise RefusedError(
            "nodes on different machines believe each other only with a secret: give all the same cluster.secret"
        )


def both_local(one: object, other: object) -> bool:
    """Whether two socket addresses, as a transport tells them, are of this machine."""
    return _is_loopback(one) and _is_loopback(other)


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple) or not address:
        return False
    try:
        return ip_address(str(address[0])).is_loopback
    except ValueError:
        return False
