"""What survives a restart, and what records look like."""

from __future__ import annotations

import pytest
from group_stage import SETTINGS, Stage, reload

from headrace.group.commands import Now
from headrace.group.machine import Groups
from headrace.group.records import GroupKey, GroupMetadata, MemberRecord, OffsetCommit, OffsetKey, decode, encode


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_members_of_a_stable_group_go_on_after_a_restart(stage: Stage) -> None:
    leader, follower = stage.stable(2)
    stage.restart()
    assert stage.heartbeat(leader, 1) == stage.heartbeat(follower, 1) == "none"
    assert stage.said(stage.sync(follower, 1)) == f"gets {follower}"
    assert stage.commit(member_id=leader, generation=1) == "none"


def test_sessions_begin_anew_after_a_restart(stage: Stage) -> None:
    first, second = stage.stable(2)
    stage.wait(9_000)
    stage.restart()
    stage.wait(9_000)
    assert stage.heartbeat(first, 1) == "none"
    stage.wait(9_000)
    assert stage.heartbeat(second, 1) == "unknown_member_id"


def test_a_rebalance_that_a_restart_cut_short_begins_again_from_the_last_generation(stage: Stage) -> None:
    first, second = stage.stable(2)
    stage.join(first)
    stage.join(second)
    assert stage.state() == "CompletingRebalance"
    stage.restart()
    assert stage.heartbeat(first, 2) == "illegal_generation"
    assert stage.state() == "Stable"
    stage.join(first)
    assert stage.said(stage.join(second)).startswith(f"{second} generation 2")


def test_generations_go_on_counting_after_a_restart(stage: Stage) -> None:
    [member] = stage.stable()
    stage.leave(member)
    stage.restart()
    _, token = stage.new_member()
    stage.wait(100)
    assert "generation 3" in stage.said(token)


def test_a_group_in_the_middle_of_a_rebalance_is_kept_in_a_snapshot_as_it_last_was(stage: Stage) -> None:
    first, second = stage.stable(2)
    stage.join(first)
    again = reload(list(stage.groups.snapshot()), SETTINGS, stage.now)
    stage.groups = again
    assert stage.heartbeat(first, 1) == stage.heartbeat(second, 1) == "none"


def test_a_log_followed_by_part_of_a_snapshot_gives_the_same_state(stage: Stage) -> None:
    stage.stable(2)
    stage.commit(group="a")
    stage.commit(group="a", topic="u")
    stage.commit(group="b")
    stage.delete(group="b")
    whole = list(stage.groups.snapshot())
    for cut in range(len(whole) + 1):
        again = reload([*stage.log, *whole[:cut]], SETTINGS, stage.now)
        assert sorted(again.snapshot()) == sorted(whole)


def test_compaction_by_key_loses_nothing(stage: Stage) -> None:
    stage.stable(2)
    for offset in range(10):
        stage.commit(offset, group="a")
    stage.commit(group="b")
    stage.delete(group="b")
    newest = {key: value for key, value in stage.log if value is not None}
    for key in [key for key, value in stage.log if value is None]:
        newest.pop(key, None)
    again = reload(list(newest.items()), SETTINGS, stage.now)
    assert sorted(again.snapshot()) == sorted(stage.groups.snapshot())


def test_records_come_back_as_they_were_written() -> None:
    member = MemberRecord("m", None, "c", "/h", 1, 2, b"s", b"a")
    for key, value in (
        (GroupKey("g"), GroupMetadata("consumer", 7, "range", "m", 99, (member,))),
        (GroupKey("g"), None),
        (OffsetKey("g", "t", 3), OffsetCommit(5, 1, "note", 99, None)),
        (OffsetKey("g", "t", 3), None),
    ):
        assert decode(*encode(key, value)) == (key, value)


def test_keys_never_change_their_bytes() -> None:
    """They are on people's disks: changing one means that compaction keeps both."""
    assert encode(GroupKey("g"), None)[0].hex() == "92a167a167"
    assert encode(OffsetKey("g", "t", 3), None)[0].hex() == "94a16fa167a17403"


def test_a_key_from_a_newer_version_is_skipped() -> None:
    groups = Groups(SETTINGS, Now(0, 0))
    groups.replay(b"\x92\xa1z\xa1g", b"anything", Now(0, 0))
    groups.replay(b"\xc1", None, Now(0, 0))
    assert groups.names() == []


def test_a_machine_without_groups_has_nothing_to_wait_for() -> None:
    assert Groups(SETTINGS, Now(0, 0)).due() is None
