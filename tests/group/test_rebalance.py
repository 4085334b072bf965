"""SyncGroup, Heartbeat, LeaveGroup, sessions, and the table of states."""

from __future__ import annotations

import pytest
from group_stage import Stage, subscription

from headrace.group.classic import GROUP_BYTES
from headrace.group.rebalance import NEXT, State


@pytest.fixture
def stage() -> Stage:
    return Stage()


def completing(stage: Stage, count: int = 2, **fields: int) -> list[str]:
    """Members who all have joined generation 1 and owe a sync."""
    members = [stage.new_member(**fields)[0] for _ in range(count)]
    stage.wait(100 * (count + 1))
    assert stage.state() == "CompletingRebalance"
    return members


def test_followers_wait_for_the_leaders_assignment(stage: Stage) -> None:
    leader, follower = completing(stage)
    waiting = stage.sync(follower, 1)
    assert stage.said(waiting) == "waits"
    token = stage.sync(leader, 1, assignments={leader: b"left", follower: b"right", "stranger": b"none"})
    assert stage.said(token) == "gets left"
    assert stage.said(waiting) == "gets right"
    assert stage.state() == "Stable"


def test_a_late_follower_gets_its_assignment_at_once(stage: Stage) -> None:
    leader, follower = completing(stage)
    stage.sync(leader, 1, assignments={follower: b"right"})
    assert stage.said(stage.sync(follower, 1)) == "gets right"
    assert stage.said(stage.sync(leader, 1)) == "gets nothing"


@pytest.mark.parametrize(
    ("member", "generation", "fields", "error"),
    [
        ("m1", 2, {}, "illegal_generation"),
        ("m1", 0, {}, "illegal_generation"),
        ("stranger", 1, {}, "unknown_member_id"),
        ("m1", 1, {"instance_id": "i"}, "unknown_member_id"),
        ("m1", 1, {"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ("m1", 1, {"protocol": "sticky"}, "inconsistent_group_protocol"),
        ("m1", 1, {"assignments": {"m1": b"x" * (GROUP_BYTES + 1)}}, "invalid_request"),
    ],
)
def test_a_sync_must_fit_the_generation(
    stage: Stage, member: str, generation: int, fields: dict[str, object], error: str
) -> None:
    completing(stage)
    assert stage.said(stage.sync(member, generation, **fields)) == error


def test_a_sync_may_name_the_protocol_that_was_agreed(stage: Stage) -> None:
    leader, _ = completing(stage)
    assert stage.said(stage.sync(leader, 1, protocol_type="consumer", protocol="range")) == "gets nothing"


def test_a_sync_of_an_unknown_or_empty_group_is_of_an_unknown_member(stage: Stage) -> None:
    assert stage.said(stage.sync("m1", 1)) == "unknown_member_id"
    assert stage.said(stage.sync("m1", 1, group="")) == "invalid_group_id"
    stage.commit()
    assert stage.said(stage.sync("m1", 1)) == "unknown_member_id"


def test_a_sync_during_a_rebalance_is_told_to_rejoin(stage: Stage) -> None:
    leader, follower = stage.stable(2)
    stage.join(leader)
    assert stage.said(stage.sync(follower, 1)) == "rebalance_in_progress"


def test_a_rebalance_answers_syncs_that_wait(stage: Stage) -> None:
    leader, follower = completing(stage)
    waiting = stage.sync(follower, 1)
    stage.new_member()
    assert stage.said(waiting) == "rebalance_in_progress"
    assert stage.heartbeat(leader, 1) == "rebalance_in_progress"


def test_a_second_sync_of_the_same_member_answers_the_first(stage: Stage) -> None:
    leader, follower = completing(stage)
    first, second = stage.sync(follower, 1), stage.sync(follower, 1)
    assert stage.said(first) == "rebalance_in_progress"
    stage.sync(leader, 1, assignments={follower: b"right"})
    assert stage.said(second) == "gets right"


def test_who_does_not_sync_in_time_is_removed(stage: Stage) -> None:
    leader, follower = completing(stage, session_timeout_ms=600_000)
    waiting = stage.sync(follower, 1)
    stage.wait(60_000)
    assert stage.said(waiting) == "rebalance_in_progress"
    assert stage.heartbeat(leader, 1) == "unknown_member_id"
    assert stage.said(stage.join(follower)).startswith(f"{follower} generation 2 range leader {follower}")


def test_a_follower_that_never_syncs_is_removed_from_a_stable_group(stage: Stage) -> None:
    leader, follower = completing(stage, session_timeout_ms=600_000)
    stage.sync(leader, 1)
    stage.wait(60_000)
    assert stage.heartbeat(leader, 1) == "rebalance_in_progress"
    assert stage.heartbeat(follower, 1) == "unknown_member_id"


def test_when_all_have_synced_nobody_is_removed(stage: Stage) -> None:
    stage.stable(2, session_timeout_ms=600_000)
    stage.wait(120_000)
    assert stage.state() == "Stable"


def test_heartbeats_in_each_state(stage: Stage) -> None:
    assert stage.heartbeat("m1", 1) == "unknown_member_id"
    assert stage.heartbeat("m1", 1, group="") == "invalid_group_id"
    member, _ = stage.new_member()
    assert stage.heartbeat(member, 0) == "rebalance_in_progress"
    stage.wait(100)
    assert stage.heartbeat(member, 1) == "none", "CompletingRebalance"
    assert stage.heartbeat(member, 0) == "illegal_generation"
    stage.sync(member, 1)
    assert stage.heartbeat(member, 1) == "none"
    assert stage.heartbeat("stranger", 1) == "unknown_member_id"
    stage.leave(member)
    assert stage.heartbeat(member, 1) == "unknown_member_id"


def test_heartbeats_keep_a_session_alive_and_silence_ends_it(stage: Stage) -> None:
    first, second = stage.stable(2)
    for _ in range(5):
        stage.wait(9_000)
        assert stage.heartbeat(first, 1) != "unknown_member_id"
    assert stage.heartbeat(second, 1) == "unknown_member_id"
    assert stage.heartbeat(first, 1) == "rebalance_in_progress"


def test_a_commit_is_a_sign_of_life(stage: Stage) -> None:
    [member] = stage.stable()
    for _ in range(3):
        stage.wait(9_000)
        assert stage.commit(member_id=member, generation=1) == "none"


def test_who_waits_for_others_need_not_send_heartbeats(stage: Stage) -> None:
    first, second = stage.stable(2, session_timeout_ms=30_000)
    token = stage.join(first)
    for _ in range(5):
        stage.wait(11_000)
        stage.heartbeat(second, 1)
    assert stage.said(token) == "waits"
    stage.join(second)
    assert stage.said(token).startswith(f"{first} generation 2")


def test_the_last_session_to_end_leaves_an_empty_group_of_the_next_generation(stage: Stage) -> None:
    stage.stable(2)
    stage.wait(70_000)
    assert stage.state() == "Empty"
    _, token = stage.new_member()
    stage.wait(100)
    assert "generation 3" in stage.said(token)


def test_leaving_makes_the_others_rejoin(stage: Stage) -> None:
    first, second = stage.stable(2)
    assert stage.leave(first) == "none"
    assert stage.heartbeat(second, 1) == "rebalance_in_progress"
    assert stage.said(stage.join(second)) == f"{second} generation 2 range leader {second} of {second}"


def test_several_members_leave_in_one_request(stage: Stage) -> None:
    first, second, third = stage.stable(3)
    assert stage.leave(first, "stranger", second, ("", "i")) == "none unknown_member_id none unknown_member_id"
    assert stage.said(stage.join(third)) == f"{third} generation 2 range leader {third} of {third}"


def test_leaving_an_unknown_group_is_of_an_unknown_member(stage: Stage) -> None:
    assert stage.leave("m1") == "unknown_member_id"
    assert stage.leave("m1", group="") == "invalid_group_id"


def test_the_last_to_leave_empties_the_group(stage: Stage) -> None:
    [member] = stage.stable()
    stage.leave(member)
    assert stage.state() == "Empty"


def test_leaving_with_a_promised_id_disturbs_nobody(stage: Stage) -> None:
    stage.stable()
    stage.join()
    assert stage.leave("m3") == "none"
    assert stage.state() == "Stable"
    assert stage.said(stage.join("m3")) == "unknown_member_id m3"


def test_the_one_who_leaves_while_it_waits_is_answered(stage: Stage) -> None:
    leader, follower = completing(stage)
    sync = stage.sync(follower, 1)
    stage.leave(follower)
    assert stage.said(sync) == "unknown_member_id"
    third, join = stage.new_member()
    stage.leave(third)
    assert stage.said(join) == "unknown_member_id"
    assert stage.said(stage.join(leader)).startswith(f"{leader} generation 2")


def test_when_the_last_missing_member_leaves_the_rebalance_completes(stage: Stage) -> None:
    first, second = stage.stable(2)
    token = stage.join(first)
    assert stage.said(token) == "waits"
    stage.leave(second)
    assert stage.said(token) == f"{first} generation 2 range leader {first} of {first}"


def test_a_description_shows_metadata_of_stable_groups_only(stage: Stage) -> None:
    assert (stage.describe().state, stage.describe().found) == ("Dead", False)
    [member] = stage.stable(client_id="app", client_host="/10.0.0.1")
    described = stage.describe()
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    [shown] = described.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member, "app", "/10.0.0.1")
    assert (shown.metadata, shown.assignment) == (subscription("t"), member.encode())
    stage.new_member()
    described = stage.describe()
    assert (described.state, described.protocol) == ("PreparingRebalance", "")
    assert [shown.metadata for shown in described.members] == [b"", b""]


def test_groups_are_listed_with_type_and_state(stage: Stage) -> None:
    stage.stable()
    stage.commit(group="simple")
    assert stage.list().groups == (("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic"))


def test_a_way_between_states_that_is_not_in_the_table_is_a_bug(stage: Stage) -> None:
    stage.stable()
    group = stage.groups._groups["g"]
    for state in State:
        if state not in NEXT[State.STABLE]:
            with pytest.raises(AssertionError, match="no way from Stable"):
                group._move(state, stage.now)
