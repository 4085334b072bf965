"""Static membership (KIP-345, KIP-814): members that come back under the same instance id."""

from __future__ import annotations

import pytest
from group_stage import Stage, subscription


@pytest.fixture
def stage() -> Stage:
    return Stage()


def static(stage: Stage, *instances: str, **fields: object) -> list[str]:
    """A stable group of static members."""
    tokens = [stage.join(instance_id=instance, **fields) for instance in instances]
    stage.wait(100 * (len(instances) + 1))
    members = [stage.answers[token].member_id for token in tokens]
    for member, instance in reversed(list(zip(members, instances, strict=True))):
        assignments = {m: m.encode() for m in members} if member == members[0] else {}
        stage.sync(member, 1, instance_id=instance, assignments=assignments)
    assert stage.state() == "Stable"
    return members


def test_a_static_member_joins_without_asking_for_an_id(stage: Stage) -> None:
    token = stage.join(instance_id="i")
    stage.wait(100)
    assert stage.said(token) == "m1 generation 1 range leader m1 of m1"


def test_a_static_follower_comes_back_without_a_rebalance(stage: Stage) -> None:
    leader, old = static(stage, "a", "b")
    token = stage.join(instance_id="b")
    assert stage.said(token) == f"m3 generation 1 range leader {leader}"
    assert stage.said(stage.sync("m3", 1, instance_id="b")) == f"gets {old}"
    assert stage.state() == "Stable"


def test_a_static_leader_comes_back_and_need_not_assign(stage: Stage) -> None:
    _, follower = static(stage, "a", "b")
    assert stage.said(stage.join(instance_id="a")) == f"m3 generation 1 range leader m3 of {follower},m3 skip"


def test_an_old_static_leader_is_shown_another_leader_so_that_it_does_not_assign(stage: Stage) -> None:
    leader, _ = static(stage, "a", "b")
    token = stage.join(instance_id="a", may_skip_assignment=False)
    assert stage.said(token) == f"m3 generation 1 range leader {leader}"


@pytest.mark.parametrize("verb", ["heartbeat", "sync", "join", "leave", "commit"])
def test_the_old_id_is_fenced(stage: Stage, verb: str) -> None:
    _, old = static(stage, "a", "b")
    stage.join(instance_id="b")
    said = {
        "heartbeat": lambda: stage.heartbeat(old, 1, instance_id="b"),
        "sync": lambda: stage.said(stage.sync(old, 1, instance_id="b")),
        "join": lambda: stage.said(stage.join(old, instance_id="b")).split()[0],
        "leave": lambda: stage.leave((old, "b")),
        "commit": lambda: stage.commit(member_id=old, generation=1, instance_id="b"),
    }[verb]()
    assert said.split(": ")[-1] == "fenced_instance_id"


def test_a_member_that_has_lost_its_id_is_told_to_join_again_not_to_end(stage: Stage) -> None:
    static(stage, "a", "b")
    assert stage.heartbeat("", 1, instance_id="b") == "unknown_member_id"


def test_the_new_id_survives_a_restart(stage: Stage) -> None:
    _, old = static(stage, "a", "b")
    stage.join(instance_id="b")
    stage.restart()
    assert stage.heartbeat("m3", 1, instance_id="b") == "none"
    assert stage.heartbeat(old, 1, instance_id="b") == "fenced_instance_id"


def test_other_topics_cause_a_rebalance(stage: Stage) -> None:
    static(stage, "a", "b")
    token = stage.join(instance_id="b", protocols=(("range", subscription("other")),))
    assert stage.said(token) == "waits"
    assert stage.state() == "PreparingRebalance"


def test_other_owned_partitions_cause_none(stage: Stage) -> None:
    static(stage, "a", "b")
    stage.join(instance_id="b", protocols=(("range", subscription("t", tail=b"owned by nobody")),))
    assert stage.state() == "Stable"


def test_a_change_of_the_elected_protocol_causes_a_rebalance(stage: Stage) -> None:
    both = (("x", b""), ("y", b""))
    static(stage, "a", "b", protocols=both, protocol_type="own")
    stage.join(instance_id="b", protocols=(("y", b""),), protocol_type="own")
    assert stage.state() == "PreparingRebalance"


def test_coming_back_while_others_sync_starts_again(stage: Stage) -> None:
    for instance in "ab":
        stage.join(instance_id=instance)
    stage.wait(1_000)
    waiting = stage.sync("m2", 1, instance_id="b")
    token = stage.join(instance_id="b")
    assert stage.said(waiting) == "fenced_instance_id"
    assert stage.said(token) == "waits"
    assert stage.said(stage.join("m1", instance_id="a")) == "m1 generation 2 range leader m1 of m1,m3"


def test_coming_back_while_the_old_one_still_joins_fences_it(stage: Stage) -> None:
    old = stage.join(instance_id="a")
    new = stage.join(instance_id="a")
    assert stage.said(old) == "fenced_instance_id m1"
    stage.wait(1_000)
    assert stage.said(new) == "m2 generation 1 range leader m2 of m2"


def test_a_static_member_may_be_away_for_its_session(stage: Stage) -> None:
    leader, _ = static(stage, "a", "b", session_timeout_ms=100_000)
    stage.wait(50_000)
    assert stage.heartbeat(leader, 1, instance_id="a") == "none"
    stage.wait(60_000)
    assert stage.heartbeat(leader, 1, instance_id="a") == "rebalance_in_progress"


def test_a_member_leaves_by_instance_id_alone(stage: Stage) -> None:
    leader, _ = static(stage, "a", "b")
    assert stage.leave(("", "b"), ("", "nobody")) == "none unknown_member_id"
    assert stage.said(stage.join(leader, instance_id="a")) == f"{leader} generation 2 range leader {leader} of {leader}"


def test_static_members_who_all_miss_a_rebalance_keep_their_places_until_their_sessions_end(stage: Stage) -> None:
    static(stage, "a", "b", session_timeout_ms=200_000, rebalance_timeout_ms=10_000)
    stage.leave(("", "a"))
    stage.wait(10_000)
    assert stage.state() == "PreparingRebalance"
    assert len(stage.describe().members) == 1
    stage.wait(200_000)
    assert stage.state() == "Empty"


def test_a_promised_id_cannot_be_used_with_an_instance_id(stage: Stage) -> None:
    stage.join()
    assert stage.said(stage.join("m1", instance_id="i")) == "unknown_member_id m1"
