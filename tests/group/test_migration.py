"""Classic and new members in one group, and the way from one protocol to the other and back."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from consumer_stage import PATIENT, ConsumerStage
from group_stage import subscription
from hypothesis import given
from hypothesis import strategies as st

from headrace.group.classic import ClassicGroup
from headrace.group.commands import JoinAnswer, SyncAnswer
from headrace.group.embedded import assignment_bytes, assignment_of, subscription_of
from headrace.group.migration import MixedGroup


@pytest.fixture
def stage() -> MixedStage:
    return MixedStage()


def owning(text: str, *topics: str) -> bytes:
    """A cooperative member's metadata: it says what it owns ("t:0,1")."""
    owned = [each.split(":") for each in text.split()]
    tail = b"\xff\xff\xff\xff" + struct.pack(">i", len(owned))
    for name, indexes in owned:
        numbers = [int(index) for index in indexes.split(",")]
        tail += struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name.encode(), len(numbers), *numbers)
    return subscription(*topics or ("t",), version=1, tail=tail)


def protocols(owned: str = "", *topics: str, name: str = "range") -> tuple[tuple[str, bytes], ...]:
    return ((name, owning(owned, *topics)),)


class MixedStage(ConsumerStage):
    """Classic members beside new ones."""

    def classic(self, count: int = 2) -> list[str]:
        """A stable classic group; partitions of t are dealt out evenly."""
        members = [self.new_member(protocols=protocols())[0] for _ in range(count)]
        self.wait(self.settings.initial_rebalance_delay_ms * (count + 1))
        share = 4 // count
        assignments = {
            member: assignment_bytes(1, {"t": list(range(at * share, (at + 1) * share))})
            for at, member in enumerate(members)
        }
        for member in reversed(members):
            self.sync(member, 1, assignments=assignments if member == members[0] else {})
        assert self.state() == "Stable"
        return members

    def guest_id(self) -> str:
        self.guest_joins("")
        return self.joined.member_id

    def guest_joins(self, member_id: str, owned: str = "", *topics: str, **fields: Any) -> str:
        """What a classic member hears: "generation G", or the error."""
        fields = {"protocols": protocols(owned, *topics), **fields}
        self.joined = self.answers[self.join(member_id, **fields)]
        assert isinstance(self.joined, JoinAnswer)
        return self.joined.error.name if self.joined.error else f"generation {self.joined.generation}"

    def guest_syncs(self, member_id: str, generation: int, **fields: Any) -> str:
        answer = self.answers[self.sync(member_id, generation, **fields)]
        assert isinstance(answer, SyncAnswer)
        if answer.error:
            return answer.error.name
        partitions = assignment_of(answer.assignment)
        assert partitions is not None
        return " ".join(f"{name}:{','.join(map(str, indexes))}" for name, indexes in partitions)


# -- from classic to new


def test_a_new_member_turns_a_classic_group_into_a_new_one(stage: MixedStage) -> None:
    a, b = stage.classic()
    assert stage.enter("n") == "epoch 2:"
    assert stage.list().groups == (("g", "consumer", "Reconciling", "consumer"),)
    assert [m.facts.classic is not None for m in stage.shown().members] == [True, True, False]
    assert (stage.has(a), stage.has(b)) == ("t:0,1", "t:2,3"), "nobody lost anything"
    assert stage.durable() == stage.replayed()


def test_classic_members_follow_by_joining_and_syncing(stage: MixedStage) -> None:
    a, b = stage.classic()
    stage.enter("n")
    assert stage.heartbeat(a, 1) == "rebalance_in_progress"
    assert stage.guest_joins(a) == "generation 2", "an eager member owns nothing when it joins"
    assert (stage.joined.leader, stage.joined.members, stage.joined.protocol) == ("", (), "range")
    first = stage.guest_syncs(a, 2)
    assert stage.guest_joins(b) == "generation 2"
    second = stage.guest_syncs(b, 2)
    third = stage.beat("n", 2)
    owners = {"a": first, "b": second, "n": third.removeprefix("epoch 2: ")}
    indexes = sorted(int(i) for text in owners.values() for i in text.removeprefix("t:").split(","))
    assert indexes == [0, 1, 2, 3], owners
    assert stage.shown().state == "Stable"
    assert stage.heartbeat(a, 2) == stage.heartbeat(b, 2) == "none"


def test_a_cooperative_member_gives_up_before_another_gets(stage: MixedStage) -> None:
    (a,) = stage.classic(1)
    stage.enter("n")
    assert stage.guest_joins(a, "t:0,1,2,3") == "generation 1", "it stays in its epoch while it has to give up"
    assert stage.guest_syncs(a, 1) == "t:0,1"
    assert stage.beat("n", 2) == "epoch 2"
    assert stage.heartbeat(a, 1) == "rebalance_in_progress"
    assert stage.guest_joins(a, "t:0,1") == "generation 2"
    assert stage.beat("n", 2) == "epoch 2: t:2,3"
    assert stage.guest_syncs(a, 2) == "t:0,1"
    assert stage.heartbeat(a, 2) == "none"


def test_a_classic_member_is_told_when_what_it_waits_for_is_free(stage: MixedStage) -> None:
    stage.enter("n")
    guest = stage.guest_id()
    assert stage.guest_joins(guest) == "generation 2"
    assert stage.guest_syncs(guest, 2) == ""
    assert stage.heartbeat(guest, 2) == "none", "it would be of no use to join: the partitions are still held"
    stage.beat("n", 1)
    stage.beat("n", 1, owned="t:0,1")
    assert stage.heartbeat(guest, 2) == "rebalance_in_progress"
    assert stage.guest_joins(guest) == "generation 2"
    assert stage.guest_syncs(guest, 2) == "t:2,3"


def test_those_who_wait_in_a_classic_group_are_told_to_join_again(stage: MixedStage) -> None:
    a, b = stage.classic()
    waiting = stage.join(a, protocols=protocols())
    stage.enter("n")
    assert stage.said(waiting) == f"rebalance_in_progress {a}"
    assert stage.guest_joins(a) == "generation 2"
    assert stage.said(stage.sync(b, 1)) == "rebalance_in_progress"


def test_partitions_that_a_waiting_member_says_it_owns_stay_with_it(stage: MixedStage) -> None:
    """A rebalance that was cut short twice has cleared the assignments; the members still hold their partitions."""
    (a,) = stage.classic(1)
    stage.new_member(protocols=protocols())
    stage.join(a, protocols=protocols("t:0,1,2,3"))
    stage.new_member(protocols=protocols())
    stage.join(a, protocols=protocols("t:0,1,2,3"))
    old = stage.groups._groups["g"]
    assert isinstance(old, ClassicGroup) and old.roster[a].assignment == b""
    stage.enter("n")
    topic = stage.topics.topics["t"].topic_id
    assert {stage.group().holder((topic, index)) for index in range(4)} == {a}


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_a_policy_may_forbid_it(policy: str) -> None:
    stage = MixedStage(replace(PATIENT, consumer_migration=policy))
    stage.classic()
    assert stage.enter("n") == "group_id_not_found"
    assert stage.state() == "Stable"


def test_a_group_of_another_protocol_stays_classic(stage: MixedStage) -> None:
    stage.stable(protocol_type="connect", protocols=(("v1", b"x"),))
    assert stage.enter("n") == "group_id_not_found"
    assert stage.heard.message == "Group g is not a consumer group."


def test_members_whose_subscriptions_cannot_be_read_stay_classic(stage: MixedStage) -> None:
    stage.stable(protocols=(("range", b"?"),))
    assert stage.enter("n") == "group_id_not_found"


def test_a_full_group_is_not_turned() -> None:
    stage = MixedStage(replace(PATIENT, consumer_max_size=2))
    stage.classic()
    assert stage.enter("n") == "group_max_size_reached"
    assert stage.state() == "Stable"


def test_an_empty_classic_group_becomes_a_new_one_with_its_offsets(stage: MixedStage) -> None:
    (a,) = stage.classic(1)
    stage.commit(7, member_id=a, generation=1)
    stage.leave(a)
    stage.wait(60_000)
    assert stage.state() == "Empty"
    assert stage.enter("n") == "epoch 3: t:0,1,2,3"
    assert stage.fetch() == "t-0@7/3"
    assert stage.durable() == stage.replayed()


def test_a_group_of_commits_alone_becomes_a_new_one(stage: MixedStage) -> None:
    stage.commit(7)
    assert stage.enter("n") == "epoch 1: t:0,1,2,3"
    assert stage.fetch() == "t-0@7/3"


def test_a_static_member_changes_the_protocol_and_keeps_its_place(stage: MixedStage) -> None:
    stage.enter("n")
    assert stage.guest_joins("", instance_id="i", new_id="old") == "generation 2"
    stage.beat("n", 1)
    stage.beat("n", 1, owned="t:0,1")
    stage.guest_joins("old", instance_id="i")
    had = stage.has("old")
    assert stage.enter("new", instance_id="i") == f"epoch 2: {had}"
    assert stage.heartbeat("old", 2, instance_id="i") == "fenced_instance_id"
    assert stage.heartbeat("", 2, instance_id="i") == "unknown_member_id"
    assert all(member.facts.classic is None for member in stage.shown().members)


# -- classic members: what they may not


def test_a_classic_member_needs_an_id_first(stage: MixedStage) -> None:
    stage.enter("n")
    assert stage.guest_joins("", new_id="drawn") == "member_id_required"
    assert stage.joined.member_id == "drawn"
    assert stage.guest_joins("drawn") == "generation 2"
    assert stage.guest_joins("", new_id="second", must_know_id=False) == "generation 3"


def test_classic_members_need_a_protocol_in_common(stage: MixedStage) -> None:
    stage.enter("n")
    inconsistent = "inconsistent_group_protocol"
    assert stage.guest_joins("", protocol_type="connect") == inconsistent
    assert stage.guest_joins("", protocols=(("range", b"?"),)) == inconsistent
    assert stage.guest_joins("", protocols=()) == inconsistent
    assert stage.guest_joins("x") == "generation 2"
    assert stage.guest_joins("y", protocols=protocols(name="sticky")) == inconsistent
    assert stage.guest_joins("x", protocols=protocols(name="sticky")) == "generation 2", "alone it may change"


def test_a_new_member_is_no_classic_one(stage: MixedStage) -> None:
    stage.enter("n")
    assert stage.heartbeat("n", 1) == "unknown_member_id"
    assert stage.said(stage.sync("n", 1)) == "unknown_member_id"
    assert stage.leave("n") == "unknown_member_id"


def test_classic_errors_in_a_new_group(stage: MixedStage) -> None:
    stage.enter("n")
    guest = stage.guest_id()
    stage.guest_joins(guest)
    assert stage.heartbeat(guest, 1) == "illegal_generation"
    assert stage.said(stage.sync(guest, 1)) == "illegal_generation"
    assert stage.said(stage.sync(guest, 2, protocol="sticky")) == "inconsistent_group_protocol"
    assert stage.heartbeat("nobody", 2) == "unknown_member_id"
    assert stage.commit(5, member_id=guest, generation=2) == "none"
    assert stage.commit(5, member_id=guest, generation=1).startswith("illegal_generation")
    assert stage.commit(5, member_id=guest, generation=2, knows_epochs=False) == "none"


def test_a_new_group_takes_no_more_classic_members_than_it_has_room_for() -> None:
    stage = MixedStage(replace(PATIENT, consumer_max_size=1))
    stage.enter("n")
    assert stage.guest_joins("", new_id="x") == "group_max_size_reached"
    assert stage.guest_joins("x") == "group_max_size_reached"


def test_a_classic_member_that_is_silent_is_removed_after_its_own_session(stage: MixedStage) -> None:
    stage.enter("n")
    guest = stage.guest_id()
    stage.guest_joins(guest)
    stage.guest_syncs(guest, 2)
    stage.wait(10_000)
    assert stage.heartbeat(guest, 2) == "unknown_member_id"


def test_a_classic_member_must_sync_in_time(stage: MixedStage) -> None:
    stage.enter("n")
    guest = stage.guest_id()
    stage.guest_joins(guest, rebalance_timeout_ms=15_000)
    for _ in range(2):
        stage.wait(7_000)
        assert stage.heartbeat(guest, 2) == "none"
    stage.wait(1_000)
    assert stage.heartbeat(guest, 2) == "unknown_member_id"


def test_a_classic_member_must_join_in_time_once_it_was_told_to(stage: MixedStage) -> None:
    stage.enter("n")
    guest = stage.guest_id()
    stage.guest_joins(guest, rebalance_timeout_ms=15_000)
    stage.guest_syncs(guest, 2)
    stage.enter("m")
    for _ in range(3):
        assert stage.heartbeat(guest, 2) == "rebalance_in_progress"
        stage.wait(5_000)
    assert stage.heartbeat(guest, 2) == "unknown_member_id"


def test_a_classic_member_leaves(stage: MixedStage) -> None:
    stage.enter("n")
    stage.guest_joins("x")
    stage.guest_joins("", instance_id="i", new_id="y")
    assert stage.leave("x", ("", "i"), ("z", None), ("n", "i")) == "none none unknown_member_id fenced_instance_id"
    assert stage.beat("n", 1) == "epoch 4"


# -- from new to classic


def test_a_group_becomes_classic_again_when_the_last_new_member_goes(stage: MixedStage) -> None:
    a, b = stage.classic()
    stage.enter("n")
    for member in (a, b):
        stage.guest_syncs(member, int(stage.guest_joins(member).split()[1]))
    assert stage.beat("n", -1) == "epoch -1"
    assert stage.list().groups == (("g", "consumer", "PreparingRebalance", "classic"),)
    assert stage.heartbeat(a, 2) == "rebalance_in_progress"
    first, second = stage.join(a, protocols=protocols()), stage.join(b, protocols=protocols())
    assert stage.said(first).startswith(f"{a} generation 3 range leader {a}")
    assert stage.said(second).startswith(f"{b} generation 3")
    assert isinstance(stage.groups._groups["g"], ClassicGroup)


def test_a_new_member_that_dies_takes_the_group_back_too(stage: MixedStage) -> None:
    stage.classic(1)
    stage.enter("n")
    assert stage.guest_joins("m2") == "generation 3"
    for _ in range(9):
        stage.wait(5_000)
        stage.heartbeat("m2", 3)
    assert stage.list().groups[0].kind == "classic"


def test_a_group_without_members_stays_what_it_is(stage: MixedStage) -> None:
    stage.enter("n")
    stage.beat("n", -1)
    assert stage.list().groups == (("g", "consumer", "Empty", "consumer"),)
    token = stage.new_member(protocols=protocols())[1]
    stage.wait(1_000)
    assert stage.said(token).startswith("m1 generation 3 range leader m1"), "but a classic member may have it"
    assert stage.list().groups[0].kind == "classic"


def test_a_static_member_may_take_the_group_back(stage: MixedStage) -> None:
    stage.enter("n", instance_id="i")
    stage.guest_joins("x")
    stage.beat("n", -2, instance_id="i")
    token = stage.join("", instance_id="i", new_id="y", protocols=protocols())
    assert stage.list().groups[0].kind == "classic"
    stage.join("x", protocols=protocols())
    assert stage.said(token).startswith("y generation 3 range")


def test_a_policy_may_keep_the_group_new() -> None:
    stage = MixedStage(replace(PATIENT, consumer_migration="upgrade"))
    stage.enter("n")
    stage.guest_joins("x")
    stage.beat("n", -1)
    assert stage.list().groups[0].kind == "consumer"
    assert stage.heartbeat("x", 2) == "rebalance_in_progress"
    assert stage.guest_joins("x") == "generation 3"
    assert stage.guest_syncs("x", 3) == "t:0,1,2,3"


def test_both_ways_survive_a_restart(stage: MixedStage) -> None:
    a, b = stage.classic()
    stage.enter("n")
    stage.guest_joins(a)
    before = stage.durable()
    stage.restart()
    assert stage.durable() == before
    assert isinstance(stage.groups._groups["g"], MixedGroup)
    assert stage.guest_joins(b) == "generation 2"
    stage.beat("n", -1)
    stage.restart()
    assert stage.list().groups == (("g", "consumer", "Stable", "classic"),)
    assert stage.durable() == stage.replayed()


# -- the consumer protocol inside the classic one


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 99)), max_size=4), st.integers(0, 3))
def test_an_assignment_is_read_as_it_was_written(topics: dict[str, list[int]], version: int) -> None:
    written = assignment_bytes(version, topics)
    assert assignment_of(written) == tuple((name, tuple(indexes)) for name, indexes in topics.items())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_subscription_or_none(data: bytes) -> None:
    subscription_of(data)
    assignment_of(data)


def test_a_subscription_with_all_that_version_3_has() -> None:
    tail = b"\xff\xff\xff\xff" + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">iii", 2, 5, 7)
    tail += struct.pack(">i", 4) + b"\0\1r"
    said = subscription_of(subscription("t", "u", version=3, tail=tail))
    assert said == (3, frozenset({"t", "u"}), (("t", (5, 7)),), "r")
    assert subscription_of(subscription("t", version=0)) == (0, frozenset({"t"}), (), None)
