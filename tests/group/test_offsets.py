"""Committing, fetching, deleting and expiring offsets; deleting groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from group_stage import SETTINGS, Stage

from headrace.core.errors import ErrorCode
from headrace.group.commands import Commit, ForgetTopics, OffsetToCommit
from headrace.group.subscription import topics_of

DAY = 86_400_000


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_committed_offset_comes_back_with_epoch_and_metadata(stage: Stage) -> None:
    assert stage.commit(42, metadata="note") == "none"
    assert stage.fetch(("t", 0), ("t", 1)) == "t-0@42/3:note t-1@-1/-1"
    assert stage.fetch() == "t-0@42/3:note"


def test_an_unknown_group_has_no_offsets_and_no_error(stage: Stage) -> None:
    assert stage.fetch(("t", 0)) == "t-0@-1/-1"
    assert stage.fetch() == ""
    assert stage.groups.names() == []


def test_a_member_commits_with_its_generation(stage: Stage) -> None:
    [member] = stage.stable()
    assert stage.commit(member_id=member, generation=1) == "none"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "m1", "generation": 2}, "illegal_generation"),
        ({"member_id": "m1", "generation": 0}, "illegal_generation"),
        ({"member_id": "m1"}, "illegal_generation"),
        ({"member_id": "stranger", "generation": 1}, "unknown_member_id"),
        ({"member_id": "m1", "generation": 1, "instance_id": "i"}, "unknown_member_id"),
        ({"generation": 1}, "unknown_member_id"),
        ({}, "unknown_member_id"),
    ],
)
def test_nobody_else_commits_to_a_group_with_members(stage: Stage, fields: dict[str, object], error: str) -> None:
    stage.stable()
    assert stage.commit(**fields) == f"{error}: {error}"
    assert stage.fetch() == ""


@pytest.mark.parametrize("error", [ErrorCode.group_id_not_found, ErrorCode.illegal_generation])
def test_a_generation_of_a_group_that_is_not_there_is_refused(stage: Stage, error: ErrorCode) -> None:
    said = stage.commit(member_id="m", generation=1, unknown_group=error)
    assert said == f"{error.name}: {error.name}"


def test_anybody_may_commit_to_an_empty_group(stage: Stage) -> None:
    [member] = stage.stable()
    stage.leave(member)
    assert stage.commit() == "none"
    assert stage.commit(member_id="admin") == "none"
    assert stage.commit(member_id=member, generation=1) == "unknown_member_id: unknown_member_id"


def test_a_member_may_commit_while_a_rebalance_is_prepared_but_not_while_it_completes(stage: Stage) -> None:
    [member] = stage.stable()
    stage.new_member()
    assert stage.state() == "PreparingRebalance"
    assert stage.commit(member_id=member, generation=1) == "none"
    stage.join(member)
    assert stage.state() == "CompletingRebalance"
    assert stage.commit(member_id=member, generation=2) == "rebalance_in_progress: rebalance_in_progress"


def test_too_much_metadata_spoils_only_its_own_partition(stage: Stage) -> None:
    big = "x" * (SETTINGS.offset_metadata_bytes + 1)
    command = Commit(token=-1, group="g", offsets=(OffsetToCommit("t", 0, 1, -1, big), OffsetToCommit("t", 1, 2)))
    assert stage.said(stage.ask(command)) == "offset_metadata_too_large none"
    assert stage.fetch() == "t-1@2/-1"


def test_an_absurd_group_name_is_refused(stage: Stage) -> None:
    assert stage.commit(group="x" * 2000) == "invalid_group_id: invalid_group_id"


def test_offsets_of_a_simple_group_expire_by_commit_time(stage: Stage) -> None:
    stage.commit(topic="old")
    stage.wait(5 * DAY)
    stage.commit(topic="new")
    stage.wait(2 * DAY + SETTINGS.offsets_check_interval_ms)
    assert stage.fetch() == "new-0@5/3"
    stage.wait(6 * DAY)
    assert stage.groups.names() == []


def test_offsets_of_a_group_with_members_do_not_expire(stage: Stage) -> None:
    [member] = stage.stable(session_timeout_ms=1_800_000)
    stage.commit(member_id=member, generation=1)
    for _ in range(15 * 48):
        stage.wait(1_800_000 - 1)
        assert stage.heartbeat(member, 1) == "none"
    assert stage.fetch() == "t-0@5/3"


def test_offsets_of_topics_no_longer_subscribed_expire(stage: Stage) -> None:
    stage = Stage(replace(SETTINGS, offsets_retention_ms=60_000, offsets_check_interval_ms=1_000))
    [member] = stage.stable(session_timeout_ms=600_000)
    stage.commit(member_id=member, generation=1)
    stage.commit(topic="other", member_id=member, generation=1)
    stage.wait(61_000)
    assert stage.fetch() == "t-0@5/3"


def test_an_empty_group_keeps_its_offsets_for_the_retention_since_it_became_empty(stage: Stage) -> None:
    [member] = stage.stable()
    stage.commit(member_id=member, generation=1)
    for _ in range(3 * 24 * 60 * 6):
        stage.wait(9_999)
        stage.heartbeat(member, 1)
    stage.leave(member)
    stage.wait(7 * DAY - 1_000)
    assert stage.fetch() == "t-0@5/3", "the commit is older than the retention, the emptiness is not"
    stage.restart()
    stage.wait(SETTINGS.offsets_check_interval_ms + 2_000)
    assert stage.fetch() == ""
    assert stage.groups.names() == []
    stage.restart()
    assert stage.groups.names() == [], "the tombstones are in the log"


def test_an_old_client_may_ask_for_its_own_retention(stage: Stage) -> None:
    stage.commit(retention_ms=DAY)
    stage.commit(topic="u")
    stage.wait(DAY + SETTINGS.offsets_check_interval_ms)
    assert stage.fetch() == "u-0@5/3"


def test_a_negative_retention_keeps_offsets_for_ever(stage: Stage) -> None:
    stage = Stage(replace(SETTINGS, offsets_retention_ms=-1, offsets_check_interval_ms=DAY))
    stage.commit()
    stage.wait(1000 * DAY)
    assert stage.fetch() == "t-0@5/3"


def test_a_jump_of_the_wall_clock_ends_no_session(stage: Stage) -> None:
    [member] = stage.stable()
    stage.now = stage.now._replace(wall_ms=stage.now.wall_ms + 365 * DAY)
    stage.wait(5_000)
    assert stage.heartbeat(member, 1) == "none"


def test_only_an_empty_group_may_be_deleted(stage: Stage) -> None:
    assert stage.delete() == "group_id_not_found"
    [member] = stage.stable()
    stage.commit(member_id=member, generation=1)
    assert stage.delete() == "non_empty_group"
    stage.leave(member)
    assert stage.delete() == "none"
    assert stage.delete() == "group_id_not_found"
    stage.restart()
    assert (stage.fetch(), stage.groups.names()) == ("", [])


def test_offsets_of_subscribed_topics_may_not_be_deleted(stage: Stage) -> None:
    [member] = stage.stable()
    stage.commit(member_id=member, generation=1)
    stage.commit(topic="other", member_id=member, generation=1)
    assert stage.delete_offsets(("t", 0), ("other", 0), ("other", 9)) == "group_subscribed_to_topic none none"
    assert stage.fetch() == "t-0@5/3"
    stage.leave(member)
    assert stage.delete_offsets(("t", 0)) == "none"
    assert stage.fetch() == ""


def test_a_subscription_that_cannot_be_read_might_be_to_anything(stage: Stage) -> None:
    stage.stable(protocols=(("range", b"not a subscription"),))
    assert stage.delete_offsets(("t", 0)) == "group_subscribed_to_topic"


def test_offsets_of_other_kinds_of_groups_may_be_deleted_when_empty_only(stage: Stage) -> None:
    [member] = stage.stable(protocol_type="connect", protocols=(("v1", b""),))
    assert stage.delete_offsets(("t", 0)) == "non_empty_group: non_empty_group"
    stage.leave(member)
    assert stage.delete_offsets(("t", 0)) == "none"


def test_deleting_offsets_needs_a_group(stage: Stage) -> None:
    assert stage.delete_offsets(("t", 0)) == "group_id_not_found: group_id_not_found"
    assert stage.delete_offsets(("t", 0), group="") == "invalid_group_id: invalid_group_id"


def test_offsets_of_deleted_topics_are_forgotten(stage: Stage) -> None:
    stage.commit(group="a")
    stage.commit(group="b")
    stage.commit(group="b", topic="kept")
    assert stage.said(stage.ask(ForgetTopics(token=-1, topics=frozenset({"t"})))) == "none"
    assert (stage.fetch(group="a"), stage.fetch(group="b")) == ("", "kept-0@5/3")
    stage.restart()
    assert stage.groups.names() == ["b"]


@pytest.mark.parametrize(
    "metadata", [b"", b"\0\1", b"\0\1\0\0\0\1", b"\0\1\0\0\0\1\0\5ab", b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff"]
)
def test_broken_subscriptions_are_not_read(metadata: bytes) -> None:
    assert topics_of(metadata) is None


def test_what_is_decided_is_in_the_log(stage: Stage) -> None:
    for number in count(1):
        stage.commit(number)
        stage.restart()
        assert stage.fetch() == f"t-0@{number}/3"
        if number == 3:
            break
