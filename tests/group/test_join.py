"""JoinGroup: ids, protocols, sizes, the initial delay, and how a rebalance completes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_stage import SETTINGS, Stage, subscription

from headrace.core import limits


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_dynamic_member_first_gets_an_id_and_joins_with_it(stage: Stage) -> None:
    assert stage.said(stage.join()) == "member_id_required m1"
    token = stage.join("m1")
    assert stage.said(token) == "waits"
    stage.wait(100)
    assert stage.said(token) == "m1 generation 1 range leader m1 of m1"


def test_an_old_client_joins_at_once_without_an_id(stage: Stage) -> None:
    token = stage.join(must_know_id=False)
    stage.wait(100)
    assert stage.said(token) == "m1 generation 1 range leader m1 of m1"


def test_an_id_that_was_not_given_out_is_unknown(stage: Stage) -> None:
    assert stage.said(stage.join("stranger")) == "unknown_member_id stranger"
    stage.stable()
    assert stage.said(stage.join("stranger")) == "unknown_member_id stranger"


def test_an_id_that_is_not_used_in_time_is_taken_back(stage: Stage) -> None:
    stage.join()
    stage.wait(10_000)
    assert stage.said(stage.join("m1")) == "unknown_member_id m1"
    assert stage.groups.names() == []


@pytest.mark.parametrize("group", ["", "x" * (limits.GROUP_ID_LENGTH + 1)])
def test_a_group_needs_a_name_of_sane_length(stage: Stage, group: str) -> None:
    assert stage.said(stage.join(group=group)) == "invalid_group_id"


@pytest.mark.parametrize("session_timeout_ms", [-1, 0, 999, SETTINGS.max_session_timeout_ms + 1])
def test_a_session_timeout_has_bounds(stage: Stage, session_timeout_ms: int) -> None:
    assert stage.said(stage.join(session_timeout_ms=session_timeout_ms)) == "invalid_session_timeout"


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": "connect"},
        {"protocols": (("sticky", b""),)},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_member_that_speaks_no_common_protocol_is_refused(stage: Stage, fields: dict[str, object]) -> None:
    stage.stable()
    assert stage.said(stage.join(**fields)).startswith("inconsistent_group_protocol")
    assert stage.state() == "Stable"


@pytest.mark.parametrize("fields", [{"protocols": ()}, {"protocol_type": ""}])
def test_even_the_first_member_needs_a_protocol(stage: Stage, fields: dict[str, object]) -> None:
    assert stage.said(stage.join(**fields)) == "inconsistent_group_protocol"
    assert stage.groups.names() == [], "a refused join leaves no group behind"


def test_the_protocol_with_most_votes_among_the_common_ones_wins(stage: Stage) -> None:
    a, b, c = b"a", b"b", b"c"
    tokens = [
        stage.join(must_know_id=False, protocols=protocols, protocol_type="own")
        for protocols in ((("x", a), ("y", b), ("z", c)), (("y", b), ("z", c)), (("z", c), ("y", b)))
    ]
    stage.wait(1_000)
    assert [stage.said(token) for token in tokens] == [
        "m1 generation 1 y leader m1 of m1,m2,m3",
        "m2 generation 1 y leader m1",
        "m3 generation 1 y leader m1",
    ]


def test_the_leader_learns_each_members_metadata_of_the_chosen_protocol(stage: Stage) -> None:
    token = stage.join(must_know_id=False, protocols=(("x", b"1"), ("y", b"2")), protocol_type="own")
    stage.join(must_know_id=False, protocols=(("y", b"3"),), protocol_type="own", instance_id="i")
    stage.wait(1_000)
    assert [(m.member_id, m.instance_id, m.metadata) for m in stage.answers[token].members] == [
        ("m1", None, b"2"),
        ("m2", "i", b"3"),
    ]


def test_a_name_repeated_in_one_members_list_counts_once(stage: Stage) -> None:
    twice = (("range", subscription("t")), ("range", subscription("t")))
    token = stage.join(must_know_id=False, protocols=twice)
    stage.wait(100)
    assert stage.said(token) == "m1 generation 1 range leader m1 of m1"


def test_a_full_group_takes_no_more(stage: Stage) -> None:
    stage = Stage(replace(SETTINGS, max_size=2))
    stage.stable(2)
    assert stage.said(stage.join()) == "group_max_size_reached"
    assert stage.state() == "Stable"


def test_a_full_group_that_prepares_takes_no_more_either(stage: Stage) -> None:
    stage = Stage(replace(SETTINGS, max_size=1))
    stage.new_member()
    assert stage.said(stage.join()) == "group_max_size_reached"


def test_huge_metadata_is_refused(stage: Stage) -> None:
    huge = (("range", b"x" * (limits.GROUP_METADATA_BYTES + 1)),)
    assert stage.said(stage.join(protocols=huge)) == "group_max_size_reached"
    assert stage.groups.names() == []


def test_the_initial_delay_is_extended_while_members_come(stage: Stage) -> None:
    first = stage.join(must_know_id=False)
    stage.wait(60)
    second = stage.join(must_know_id=False)
    stage.wait(60)
    assert stage.said(first) == "waits", "a member came during the delay: it is extended once more"
    stage.wait(100)
    assert stage.said(first) == "m1 generation 1 range leader m1 of m1,m2"
    assert stage.said(second) == "m2 generation 1 range leader m1"


def test_the_initial_delay_ends_with_the_rebalance_timeout(stage: Stage) -> None:
    first = stage.join(must_know_id=False, rebalance_timeout_ms=250)
    for _ in range(6):
        assert stage.said(first) == "waits" or stage.now.ms >= 250
        stage.wait(50)
        stage.join(must_know_id=False, rebalance_timeout_ms=250)
    assert stage.said(first) != "waits"


def test_a_new_member_makes_the_others_rejoin(stage: Stage) -> None:
    [first] = stage.stable()
    second, token = stage.new_member()
    assert stage.said(token) == "waits"
    assert stage.heartbeat(first, 1) == "rebalance_in_progress"
    rejoined = stage.join(first)
    assert stage.said(rejoined) == f"{first} generation 2 range leader {first} of {first},{second}"
    assert stage.said(token) == f"{second} generation 2 range leader {first}"


def test_who_does_not_rejoin_in_time_is_removed(stage: Stage) -> None:
    first, second = stage.stable(2, session_timeout_ms=600_000)
    third, token = stage.new_member()
    again = stage.join(second)
    stage.wait(59_999)
    assert stage.said(token) == "waits"
    stage.wait(1)
    assert stage.said(again) == f"{second} generation 2 range leader {second} of {second},{third}"
    assert stage.heartbeat(first, 1) == "unknown_member_id"


def test_a_join_waits_for_ids_that_were_given_out(stage: Stage) -> None:
    [first] = stage.stable()
    stage.join()
    token = stage.join(first)
    assert stage.said(token) == "waits"
    stage.join("m3")
    assert stage.said(token).startswith(f"{first} generation 2")


def test_a_follower_that_rejoins_unchanged_causes_no_rebalance(stage: Stage) -> None:
    leader, follower = stage.stable(2)
    assert stage.said(stage.join(follower)) == f"{follower} generation 1 range leader {leader}"
    assert stage.state() == "Stable"


def test_a_follower_with_another_subscription_causes_a_rebalance(stage: Stage) -> None:
    _, follower = stage.stable(2)
    token = stage.join(follower, protocols=(("range", subscription("other")),))
    assert stage.said(token) == "waits"
    assert stage.state() == "PreparingRebalance"


def test_a_leader_that_rejoins_causes_a_rebalance(stage: Stage) -> None:
    leader, _ = stage.stable(2)
    stage.join(leader)
    assert stage.state() == "PreparingRebalance"


def test_a_lost_join_answer_is_given_again(stage: Stage) -> None:
    leader, _ = stage.new_member()
    stage.wait(100)
    assert stage.state() == "CompletingRebalance"
    assert stage.said(stage.join(leader)) == f"{leader} generation 1 range leader {leader} of {leader}"


def test_a_second_join_of_the_same_member_answers_the_first(stage: Stage) -> None:
    member, first = stage.new_member()
    second = stage.join(member)
    assert stage.said(first) == f"rebalance_in_progress {member}"
    stage.wait(1_000)
    assert stage.said(second).startswith(f"{member} generation 1")


def test_a_new_member_that_waits_too_long_is_dropped(stage: Stage) -> None:
    [first] = stage.stable(rebalance_timeout_ms=900_000, session_timeout_ms=1_200_000)
    _, token = stage.new_member(rebalance_timeout_ms=900_000)
    stage.wait(300_000)
    assert stage.said(token) == "unknown_member_id"
    assert stage.said(stage.join(first)).startswith(f"{first} generation 2")
