"""Groups of the new protocol (KIP-848), rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consumer_stage import PATIENT, ConsumerStage


@pytest.fixture
def stage() -> ConsumerStage:
    return ConsumerStage()


# -- joining


def test_the_first_member_gets_everything_at_once(stage: ConsumerStage) -> None:
    assert stage.enter("a", "t", "u") == "epoch 1: t:0,1,2,3 u:0,1"
    shown = stage.shown()
    assert (shown.state, shown.group_epoch, shown.assignment_epoch, shown.assignor) == ("Stable", 1, 1, "uniform")


def test_a_newcomer_waits_until_others_gave_up_its_share(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.enter("b") == "epoch 2:"
    assert stage.shown().state == "Reconciling"
    assert stage.beat("a", 1) == "epoch 1: t:0,1", "it stays in its epoch while it has to give up"
    assert stage.has("a") == "t:0,1 - t:2,3"
    assert stage.beat("b", 2) == "epoch 2", "still held"
    assert stage.beat("a", 1, owned="t:0,1,2") == "epoch 1", "not all is given up"
    assert stage.beat("a", 1, owned="t:0,1") == "epoch 2"
    assert stage.beat("b", 2) == "epoch 2: t:2,3"
    assert stage.shown().state == "Stable"


def test_a_member_gives_up_what_it_was_told_even_if_it_had_not_begun(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.enter("b")
    assert stage.beat("a", 1, owned="") == "epoch 1: t:0,1", "it may be about to begin with all four"
    assert stage.beat("b", 2) == "epoch 2"
    assert stage.beat("a", 1, owned="") == "epoch 2"
    assert stage.beat("b", 2) == "epoch 2: t:2,3"


def test_an_answer_names_the_assignment_only_when_it_changed_or_all_was_said(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.beat("a", 1) == "epoch 1"
    assert stage.beat("a", 1, owned="t:0,1,2,3") == "epoch 1"
    full = {"owned": "t:0,1,2,3", "topics": ("t",), "rebalance_timeout_ms": 60_000}
    assert stage.beat("a", 1, **full) == "epoch 1: t:0,1,2,3"
    assert stage.heard.heartbeat_interval_ms == 5_000


def test_a_member_without_topics_is_a_member(stage: ConsumerStage) -> None:
    assert stage.enter("a", topics=()) == "epoch 1:"
    assert stage.enter("b", topics=None, pattern="") == "epoch 2:"
    assert stage.shown().state == "Reconciling"
    assert stage.beat("a", 1) == "epoch 2"


def test_an_old_client_is_given_an_id(stage: ConsumerStage) -> None:
    stage.enter("", must_bring_id=False, new_id="drawn")
    assert stage.heard.member_id == "drawn"
    assert stage.beat("drawn", 1) == "epoch 1"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group": " "}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"rebalance_timeout_ms": None}, "RebalanceTimeoutMs must be provided in first request."),
        ({"owned": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"owned": "t:0"}, "TopicPartitions must be empty when (re-)joining."),
        ({"topics": None}, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."),
        ({"epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"epoch": -1, "member_id": ""}, "MemberId can't be empty."),
    ],
)
def test_a_first_request_must_say_everything(stage: ConsumerStage, wrong: dict, message: str) -> None:
    said = {"member_id": "a", "epoch": 0, "rebalance_timeout_ms": 1, "topics": ("t",), "owned": "", **wrong}
    assert stage.beat(**said) == "invalid_request"
    assert stage.heard.message == message
    assert stage.log == [] and stage.list().groups == ()


def test_an_unknown_assignor_is_refused(stage: ConsumerStage) -> None:
    assert stage.enter("a", assignor="sticky") == "unsupported_assignor"
    assert "uniform, range" in (stage.heard.message or "")


def test_the_assignor_that_most_members_want_is_used(stage: ConsumerStage) -> None:
    stage.enter("a", assignor="uniform")
    stage.enter("b", assignor="range")
    stage.enter("c", assignor="range")
    assert stage.shown().assignor == "range"


def test_a_full_group_takes_nobody() -> None:
    stage = ConsumerStage(replace(PATIENT, consumer_max_size=1))
    stage.enter("a", instance_id="i")
    assert stage.enter("b") == "group_max_size_reached"
    assert stage.enter("a", instance_id="i") == "epoch 1: t:0,1,2,3", "it is in already"
    stage.beat("a", -2, instance_id="i")
    assert stage.enter("c", instance_id="i") == "epoch 1: t:0,1,2,3", "it takes its own place"


# -- epochs


def test_members_and_groups_that_are_not_there(stage: ConsumerStage) -> None:
    assert stage.beat("a", 1) == "group_id_not_found"
    assert stage.beat("a", -1) == "group_id_not_found"
    stage.enter("a")
    assert stage.beat("b", 1) == "unknown_member_id"
    assert stage.beat("b", -1) == "unknown_member_id"


def test_a_wrong_epoch_is_fenced(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.beat("a", 2) == "fenced_member_epoch"
    stage.enter("b")
    stage.settle("a", "b")
    stage.enter("c")
    stage.settle("a", "b", "c")
    assert stage.beat("a", 1, owned="") == "fenced_member_epoch"


def test_a_lost_answer_does_not_fence_who_owns_no_more_than_it_may(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.enter("b")
    stage.beat("a", 1)
    assert stage.beat("a", 1, owned="t:0,1") == "epoch 2"
    assert stage.beat("a", 1, owned="t:0,1") == "epoch 2"
    assert stage.beat("a", 1) == "fenced_member_epoch", "it does not say what it owns"
    assert stage.beat("a", 1, owned="t:0,1,2") == "fenced_member_epoch"


def test_a_first_request_may_be_repeated(stage: ConsumerStage) -> None:
    assert stage.enter("a") == "epoch 1: t:0,1,2,3"
    before = len(stage.log)
    assert stage.enter("a") == "epoch 1: t:0,1,2,3"
    assert len(stage.log) == before


def test_a_fenced_member_begins_again_with_epoch_0(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.enter("b")
    assert stage.beat("a", 1) == "epoch 1: t:0,1"
    assert stage.beat("a", 7) == "fenced_member_epoch"
    assert stage.enter("a") == "epoch 2: t:0,1", "it has given up everything, so the rest is free"
    assert stage.beat("b", 2) == "epoch 2: t:2,3"


def test_epochs_go_on_when_a_group_was_empty(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.beat("a", -1)
    assert stage.shown().state == "Empty"
    assert stage.enter("b") == "epoch 3: t:0,1,2,3"


# -- leaving


def test_who_leaves_frees_its_partitions(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.enter("b")
    stage.settle("a", "b")
    assert stage.beat("b", -1) == "epoch -1"
    assert stage.shown().state == "Assigning"
    assert stage.beat("a", 2) == "epoch 3: t:0,1,2,3"


def test_who_is_silent_is_removed(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.wait(30_000)
    assert stage.enter("b") == "epoch 2:"
    stage.wait(15_000)
    assert stage.beat("a", 1) == "unknown_member_id"
    assert stage.beat("b", 2) == "epoch 3: t:0,1,2,3"


def test_who_does_not_give_up_in_time_is_removed(stage: ConsumerStage) -> None:
    stage.enter("a", rebalance_timeout_ms=10_000)
    stage.enter("b")
    stage.beat("a", 1)
    for _ in range(3):
        stage.wait(3_000)
        assert stage.beat("a", 1) == "epoch 1", "alive, but it holds on"
    stage.wait(1_000)
    assert stage.beat("a", 1) == "unknown_member_id"
    assert stage.beat("b", 2) == "epoch 3: t:0,1,2,3"


def test_a_member_that_gave_up_in_time_has_no_deadline_any_more(stage: ConsumerStage) -> None:
    stage.enter("a", rebalance_timeout_ms=10_000)
    stage.enter("b")
    stage.beat("a", 1)
    assert stage.beat("a", 1, owned="t:0,1") == "epoch 2"
    stage.wait(20_000)
    assert stage.beat("a", 2) == "epoch 2"


# -- static members


def test_a_static_member_leaves_for_now_and_comes_back_to_its_partitions(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    stage.enter("b")
    stage.settle("a", "b")
    had = stage.has("a")
    assert stage.beat("a", -2, instance_id="i") == "epoch -2"
    assert stage.beat("b", 2) == "epoch 2", "nothing moves meanwhile"
    assert stage.enter("c", instance_id="i") == f"epoch 2: {had}"
    assert stage.shown().group_epoch == 2
    assert stage.beat("a", 2, instance_id="i") == "fenced_instance_id"
    assert stage.beat("a", -1, instance_id="i") == "fenced_instance_id"


def test_a_static_member_may_come_back_under_its_old_id(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    stage.beat("a", -2, instance_id="i")
    assert stage.beat("a", 1, instance_id="i") == "fenced_member_epoch"
    assert stage.enter("a", instance_id="i") == "epoch 1: t:0,1,2,3"


def test_a_static_members_place_is_not_taken_while_it_is_there(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    assert stage.enter("b", instance_id="i") == "unreleased_instance_id"
    assert stage.beat("b", 1, instance_id="i") == "fenced_instance_id"
    assert stage.beat("b", 1, instance_id="nobody") == "unknown_member_id"


def test_a_static_member_that_does_not_come_back_is_removed(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    stage.enter("b")
    stage.settle("a", "b")
    stage.beat("a", -2, instance_id="i")
    for _ in range(5):
        stage.wait(9_000)
        stage.beat("b", stage.group().stands["b"].epoch)
    assert stage.has("b") == "t:0,1,2,3"
    assert stage.enter("c", instance_id="i") == "epoch 4:"


def test_a_static_member_that_leaves_for_good_is_removed(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    stage.beat("a", -1, instance_id="i")
    assert stage.shown().state == "Empty"


# -- topics and patterns


def test_more_partitions_reach_the_members(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.topics.put("t", 6)
    stage.show()
    assert stage.beat("a", 1) == "epoch 2: t:0,1,2,3,4,5"


def test_a_topic_that_comes_later_reaches_those_who_wait_for_it(stage: ConsumerStage) -> None:
    assert stage.enter("a", "later") == "epoch 1:"
    stage.topics.put("later", 2)
    stage.show()
    assert stage.beat("a", 1) == "epoch 2: later:0,1"


def test_topics_that_do_not_matter_change_nothing(stage: ConsumerStage) -> None:
    stage.enter("a")
    before = len(stage.log)
    stage.topics.put("other", 2)
    stage.show()
    assert stage.beat("a", 1) == "epoch 1"
    assert len(stage.log) == before


def test_a_topic_that_is_made_again_is_another_topic(stage: ConsumerStage) -> None:
    stage.enter("a", "u")
    old = stage.group().stands["a"].assigned
    del stage.topics.topics["u"]
    stage.topics.put("u", 2)
    stage.show()
    assert stage.beat("a", 1) == "epoch 1:"
    assert stage.beat("a", 1, owned="") == "epoch 2: u:0,1"
    assert not stage.group().stands["a"].assigned & old


def test_a_pattern_means_all_topics_that_match_now_and_later(stage: ConsumerStage) -> None:
    assert stage.enter("a", topics=None, pattern="t|v.*") == "epoch 1: t:0,1,2,3"
    stage.topics.put("v1", 1)
    stage.show()
    assert stage.beat("a", 1) == "epoch 2: t:0,1,2,3 v1:0"
    assert stage.group().subscribed == {"t", "v1"}


def test_names_and_a_pattern_together(stage: ConsumerStage) -> None:
    assert stage.enter("a", "u", pattern="t.*") == "epoch 1: t:0,1,2,3 u:0,1"


def test_a_pattern_that_is_none_is_refused(stage: ConsumerStage) -> None:
    assert stage.enter("a", topics=None, pattern="(a") == "invalid_regular_expression"
    stage.enter("b")
    assert stage.beat("b", 1, pattern="*") == "invalid_regular_expression"
    assert stage.beat("b", 1) == "epoch 1", "nothing has changed"


def test_a_subscription_may_change(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.beat("a", 1, topics=("u",)) == "epoch 1:"
    assert stage.beat("a", 1, owned="") == "epoch 2: u:0,1"


def test_different_subscriptions_get_what_they_ask_for(stage: ConsumerStage) -> None:
    stage.enter("a", "t")
    stage.enter("b", "u")
    assert (stage.beat("a", 1), stage.beat("b", 2)) == ("epoch 2", "epoch 2")
    assert (stage.has("a"), stage.has("b")) == ("t:0,1,2,3", "u:0,1")


# -- offsets


def test_a_commit_needs_a_members_epoch(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.commit(5, member_id="a", generation=1) == "none"
    assert stage.commit(6, member_id="a", generation=2).startswith("stale_member_epoch")
    assert stage.commit(6, member_id="a", generation=0) == "stale_member_epoch"
    assert stage.commit(6, member_id="b", generation=1).startswith("unknown_member_id")
    assert stage.commit(6).startswith("unknown_member_id"), "not even an administrator, while there are members"
    assert stage.commit(6, member_id="a", generation=1, knows_epochs=False).startswith("unsupported_version")
    assert stage.fetch() == "t-0@5/3"


def test_a_commit_may_be_behind_for_partitions_that_were_the_members_all_along(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.enter("b")
    stage.beat("a", 1)
    assert stage.commit(5, member_id="a", generation=1) == "none"
    stage.beat("a", 1, owned="t:0,1")
    assert stage.commit(6, member_id="a", generation=1) == "none", "it has not heard of epoch 2 yet"
    stage.restart()
    assert stage.commit(7, member_id="a", generation=1) == "none"
    assert stage.commit(7, member_id="a", generation=0) == "stale_member_epoch"
    assert stage.commit(7, topic="gone", member_id="a", generation=1) == "stale_member_epoch"
    stage.beat("b", 2)
    stage.beat("b", -1)
    stage.beat("a", 2, owned="t:0,1")
    assert stage.has("a") == "t:0,1,2,3"
    assert stage.commit(8, partition=2, member_id="a", generation=2) == "stale_member_epoch", "not its own in epoch 2"
    assert stage.commit(8, partition=2, member_id="a", generation=3) == "none"


def test_an_empty_group_takes_commits_from_outside(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.beat("a", -1)
    assert stage.commit(6) == "none"


def test_a_member_sees_offsets_in_its_epoch_only(stage: ConsumerStage) -> None:
    stage.enter("a")
    assert stage.fetch_as("a", 1) == "none"
    assert stage.fetch_as("a", 2) == "stale_member_epoch"
    assert stage.fetch_as("b", 1) == "unknown_member_id"
    assert stage.fetch_as(None, -1) == "none"


def test_offsets_of_subscribed_topics_cannot_be_deleted(stage: ConsumerStage) -> None:
    stage.enter("a", topics=None, pattern="t")
    stage.commit(5, member_id="a", generation=1)
    stage.commit(5, topic="u", member_id="a", generation=1)
    assert stage.delete_offsets(("t", 0), ("u", 0)) == "group_subscribed_to_topic none"


# -- groups


def test_a_group_is_listed_and_described_by_its_own_kind(stage: ConsumerStage) -> None:
    stage.enter("a", rack_id="r", client_id="app")
    stage.commit(1, group="old")
    assert stage.list().groups == (("g", "consumer", "Stable", "consumer"), ("old", "", "Empty", "classic"))
    assert not stage.describe().found and stage.describe().state == "Dead"
    assert stage.shown("old").fault == "Group old is not a consumer group."
    assert stage.shown("none").fault == "Group none not found."
    (member,) = stage.shown().members
    assert (member.member_id, member.epoch, member.facts.rack_id, member.facts.client_id) == ("a", 1, "r", "app")
    assert stage.topics.text(member.assigned) == stage.topics.text(member.target) == "t:0,1,2,3"


def test_only_an_empty_group_can_be_deleted(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.commit(5, member_id="a", generation=1)
    assert stage.delete() == "non_empty_group"
    stage.beat("a", -1)
    assert stage.delete() == "none"
    assert stage.list().groups == ()
    assert stage.replayed() == {}
    assert stage.enter("b") == "epoch 1: t:0,1,2,3"


def test_an_empty_group_is_forgotten_with_its_offsets(stage: ConsumerStage) -> None:
    stage.enter("a")
    stage.commit(5, member_id="a", generation=1)
    stage.wait(stage.settings.offsets_retention_ms + 3_600_000)
    assert stage.list().groups == ()
    assert stage.replayed() == {}


# -- durability


def test_a_restart_changes_nothing_for_members(stage: ConsumerStage) -> None:
    stage.enter("a", instance_id="i")
    stage.enter("b", topics=None, pattern="t")
    stage.beat("a", 1)
    before = stage.durable()
    stage.restart()
    assert stage.durable() == before == stage.replayed()
    assert stage.has("a") == "t:0,1 - t:2,3"
    records = len(stage.log)
    assert stage.beat("a", 1) == "epoch 1"
    assert len(stage.log) == records
    assert stage.beat("a", 1, owned="t:0,1") == "epoch 2"
    assert stage.beat("b", 2) == "epoch 2: t:2,3"
    assert stage.enter("c", instance_id="i") == "unreleased_instance_id"


def test_sessions_and_deadlines_begin_anew_after_a_restart(stage: ConsumerStage) -> None:
    stage.enter("a", rebalance_timeout_ms=10_000)
    stage.enter("b")
    stage.beat("a", 1)
    stage.restart()
    stage.wait(9_999)
    assert stage.beat("a", 1) == "epoch 1"
    stage.wait(1)
    assert stage.beat("a", 1) == "unknown_member_id"
    stage.wait(45_000)
    assert stage.shown().state == "Empty"
