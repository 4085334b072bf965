"""Creating, growing and deleting topics: Kafka's errors, some topics a proposal, nothing half done."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import pytest
from msgspec.structs import replace

from headrace.broker.topics import AT_ONCE, NewPartitions, NewTopic
from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import PARTITIONS_PER_TOPIC


def create(cluster, *topics, **options):
    return cluster.run(cluster.topics.create(topics, **options))


def created(cluster, *topics):
    outcomes = create(cluster, *topics)
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    return outcomes


def code_of(outcome):
    return None if outcome.error is None else outcome.error.code


def refusal(cluster, topic):
    [outcome] = create(cluster, topic)
    assert cluster.image.topics == {}
    assert outcome.topic is None
    return outcome.error.code


def test_a_topic_gets_the_brokers_defaults_when_counts_are_left_out(make_cluster):
    cluster = make_cluster(brokers=3, num_partitions=4, default_replication_factor=2)
    [outcome] = created(cluster, NewTopic("orders"))
    topic = cluster.image.topics["orders"]
    assert len(topic.partitions) == 4
    assert all(len(record.replicas) == 2 == len(record.isr) for record in topic.partitions)
    assert outcome.topic == topic
    assert outcome.topic_id == topic.topic_id == UUID(int=1)


def test_leaders_are_spread_over_the_brokers(three):
    created(three, NewTopic("orders", 6, 3))
    partitions = three.image.topics["orders"].partitions
    assert Counter(record.leader for record in partitions) == {1: 2, 2: 2, 3: 2}
    assert all(sorted(record.replicas) == [1, 2, 3] for record in partitions)
    assert all(record.leader == record.replicas[0] and record.leader_epoch == 0 for record in partitions)


def test_topics_of_one_partition_do_not_all_land_on_one_broker(three):
    for number in range(6):
        created(three, NewTopic(f"t{number}"))
    leaders = Counter(topic.partitions[0].leader for topic in three.image.topics.values())
    assert leaders == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\0b", "x" * 250, "ünicode"])
def test_a_bad_name_is_an_invalid_topic(cluster, name):
    assert refusal(cluster, NewTopic(name, 1, 1)) is ErrorCode.invalid_topic_exception


def test_names_that_differ_only_in_dot_and_underscore_collide(cluster):
    created(cluster, NewTopic("a.b_c"))
    for name in ("a_b.c", "a.b.c", "a_b_c"):
        [outcome] = create(cluster, NewTopic(name))
        assert code_of(outcome) is ErrorCode.invalid_topic_exception
        assert "a.b_c" in outcome.error.message
    assert list(cluster.image.topics) == ["a.b_c"]


def test_names_that_collide_inside_one_request_do_too(cluster):
    first, second = create(cluster, NewTopic("a.b"), NewTopic("a_b"))
    assert code_of(first) is None
    assert code_of(second) is ErrorCode.invalid_topic_exception


def test_a_topic_that_exists_is_refused(cluster):
    created(cluster, NewTopic("or.ders"))
    [outcome] = create(cluster, NewTopic("or.ders"))
    assert code_of(outcome) is ErrorCode.topic_already_exists


def test_a_request_whose_answer_was_lost_finds_what_it_has_made(cluster):
    ticket, other = UUID(int=1), UUID(int=2)
    wanted = [NewTopic("orders", 2), NewTopic("bills", 1)]
    (orders, bills) = cluster.run(cluster.topics.create(wanted, ticket=ticket))
    again = cluster.run(cluster.topics.create(wanted, ticket=ticket))
    assert [outcome.error for outcome in again] == [None, None]
    assert [outcome.topic for outcome in again] == [orders.topic, bills.topic]
    assert orders.topic_id != bills.topic_id
    for stranger in (other, None):
        (refused, _) = cluster.run(cluster.topics.create(wanted, ticket=stranger))
        assert refused.error.code is ErrorCode.topic_already_exists
    assert len(cluster.image.topics["orders"].partitions) == 2


def test_two_requests_at_once_create_a_topic_once(cluster):
    async def both():
        return await asyncio.gather(*(cluster.topics.create([NewTopic("orders")]) for _ in range(2)))

    outcomes = [outcome for [outcome] in cluster.run(both())]
    assert sorted(code_of(outcome) or 0 for outcome in outcomes) == [0, ErrorCode.topic_already_exists]


@pytest.mark.parametrize("partitions", [0, -2, PARTITIONS_PER_TOPIC + 1, 2**31 - 1])
def test_impossible_partition_counts_are_refused(cluster, partitions):
    assert refusal(cluster, NewTopic("orders", partitions, 1)) is ErrorCode.invalid_partitions


def test_one_request_cannot_create_more_partitions_than_the_limit(cluster):
    first, second = create(cluster, NewTopic("a", PARTITIONS_PER_TOPIC, 1), NewTopic("b", 1, 1))
    assert code_of(first) is None
    assert code_of(second) is ErrorCode.invalid_partitions


@pytest.mark.parametrize("factor", [0, -2, 2, 32767])
def test_impossible_replication_factors_are_refused(cluster, factor):
    assert refusal(cluster, NewTopic("orders", 1, factor)) is ErrorCode.invalid_replication_factor


def test_an_assignment_is_taken_as_given(three):
    created(three, NewTopic("orders", assignments=[(1, (3, 1)), (0, (2, 3))]))
    partitions = three.image.topics["orders"].partitions
    assert [record.replicas for record in partitions] == [(2, 3), (3, 1)]
    assert [record.leader for record in partitions] == [2, 3]


@pytest.mark.parametrize(
    "assignments",
    [
        [(0, ())],
        [(0, (1,)), (0, (1,))],
        [(1, (1,))],
        [(0, (1,)), (2, (1,))],
        [(-1, (1,))],
        [(0, (9,))],
        [(0, (1, 1))],
        [(0, (1, 2)), (1, (1,))],
    ],
)
def test_a_bad_assignment_is_refused(three, assignments):
    assert refusal(three, NewTopic("orders", assignments=assignments)) is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(("partitions", "factor"), [(1, -1), (-1, 1), (1, 1)])
def test_counts_beside_an_assignment_are_an_invalid_request(cluster, partitions, factor):
    wanted = NewTopic("orders", partitions, factor, assignments=[(0, (1,))])
    assert refusal(cluster, wanted) is ErrorCode.invalid_request


@pytest.mark.parametrize(
    "configs",
    [{"no.such": "1"}, {"retention.ms": "soon"}, {"cleanup.policy": "burn"}, {"retention.ms": None}],
)
def test_a_bad_config_is_refused(cluster, configs):
    assert refusal(cluster, NewTopic("orders", configs=configs)) is ErrorCode.invalid_config


def test_configs_are_kept_with_the_topic(cluster):
    created(cluster, NewTopic("orders", configs={"retention.ms": "1000"}))
    assert cluster.image.topics["orders"].configs == {"retention.ms": "1000"}


def test_validate_only_tells_and_does_nothing(cluster):
    before = cluster.controller.applied_index
    good, bad = create(cluster, NewTopic("orders", 3), NewTopic("bad", 0), validate_only=True)
    assert len(good.topic.partitions) == 3
    assert code_of(bad) is ErrorCode.invalid_partitions
    assert cluster.image.topics == {}
    assert cluster.controller.applied_index == before


def test_a_topic_named_twice_is_refused_once_and_the_others_are_made(cluster):
    outcomes = create(cluster, NewTopic("twice"), NewTopic("good"), NewTopic("twice"))
    assert [(outcome.name, code_of(outcome)) for outcome in outcomes] == [
        ("twice", ErrorCode.invalid_request),
        ("good", None),
    ]
    assert list(cluster.image.topics) == ["good"]


def test_clients_cannot_make_internal_topics(cluster):
    assert refusal(cluster, NewTopic("__cluster_metadata")) is ErrorCode.invalid_request
    assert refusal(cluster, NewTopic("__consumer_offsets")) is ErrorCode.invalid_topic_exception


def test_all_topics_of_a_request_are_one_entry_of_the_log(cluster):
    before = cluster.controller.applied_index
    created(cluster, *(NewTopic(f"t{number}", 3) for number in range(5)))
    assert cluster.controller.applied_index == before + 1


def test_ensure_makes_a_topic_once_and_finds_it_after_that(cluster):
    wanted = NewTopic("__consumer_offsets", 50, configs={"cleanup.policy": "compact"})
    first = cluster.run(cluster.topics.ensure_one(wanted))
    again = cluster.run(cluster.topics.ensure_one(wanted))
    assert first is again is cluster.image.topics["__consumer_offsets"]
    assert len(first.partitions) == 50
    assert first.configs == {"cleanup.policy": "compact"}


def test_ensure_called_many_times_at_once_gives_everyone_the_same_topic(cluster):
    async def rush():
        return await asyncio.gather(*(cluster.topics.ensure_one(NewTopic("orders")) for _ in range(10)))

    assert len({topic.topic_id for topic in cluster.run(rush())}) == 1


def test_ensure_shrinks_a_default_replication_factor_to_the_cluster(make_cluster):
    cluster = make_cluster(default_replication_factor=3)
    topic = cluster.run(cluster.topics.ensure_one(NewTopic("orders")))
    assert topic.partitions[0].replicas == (1,)
    [refused] = create(cluster, NewTopic("by-hand"))
    assert code_of(refused) is ErrorCode.invalid_replication_factor


def test_ensure_raises_what_creation_refuses(cluster):
    with pytest.raises(ApiError) as refused:
        cluster.run(cluster.topics.ensure_one(NewTopic("a/b")))
    assert refused.value.code is ErrorCode.invalid_topic_exception


def delete(cluster, *targets):
    return cluster.run(cluster.topics.delete(targets))


def test_topics_are_deleted_by_name_or_id(cluster):
    created(cluster, NewTopic("a"), NewTopic("b"), NewTopic("c"))
    outcomes = delete(cluster, ("a", None), (None, cluster.image.topics["b"].topic_id))
    assert [(outcome.name, outcome.error) for outcome in outcomes] == [("a", None), ("b", None)]
    assert list(cluster.image.topics) == ["c"]


def test_what_cannot_be_deleted_is_said_and_the_rest_is_deleted(cluster):
    created(cluster, NewTopic("a"), NewTopic("b"), NewTopic("c"))
    a, b = (cluster.image.topics[name].topic_id for name in "ab")
    stranger = UUID(int=99)
    outcomes = delete(
        cluster,
        ("a", a),
        (None, None),
        ("nothing", None),
        (None, stranger),
        (None, b),
        ("b", None),
        ("twice", None),
        ("twice", None),
        ("c", None),
    )
    assert [(outcome.name, code_of(outcome)) for outcome in outcomes] == [
        ("a", ErrorCode.invalid_request),
        (None, ErrorCode.invalid_request),
        ("nothing", ErrorCode.unknown_topic_or_partition),
        (None, ErrorCode.unknown_topic_id),
        ("b", None),
        ("b", ErrorCode.invalid_request),
        ("twice", ErrorCode.invalid_request),
        ("c", None),
    ]
    assert list(cluster.image.topics) == ["a"]


def test_deletion_can_be_disabled(make_cluster):
    cluster = make_cluster(delete_topics=False)
    created(cluster, NewTopic("a"))
    with pytest.raises(ApiError) as refused:
        delete(cluster, ("a", None))
    assert refused.value.code is ErrorCode.topic_deletion_disabled
    assert "a" in cluster.image.topics


def test_internal_topics_cannot_be_deleted_or_grown(cluster):
    cluster.run(cluster.topics.ensure_one(NewTopic("__consumer_offsets", 2)))
    [deleted] = delete(cluster, ("__consumer_offsets", None))
    [grown] = grow(cluster, NewPartitions("__consumer_offsets", 4))
    assert code_of(deleted) is code_of(grown) is ErrorCode.invalid_topic_exception
    assert len(cluster.image.topics["__consumer_offsets"].partitions) == 2


def grow(cluster, *wanted, **options):
    return cluster.run(cluster.topics.add_partitions(wanted, **options))


def test_a_topic_grows_and_keeps_what_it_had(three):
    created(three, NewTopic("orders", 2, 2))
    before = three.image.topics["orders"].partitions
    [outcome] = grow(three, NewPartitions("orders", 6))
    after = three.image.topics["orders"].partitions
    assert outcome.error is None
    assert after[:2] == before
    assert [record.index for record in after] == list(range(6))
    assert Counter(record.leader for record in after) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("count", [2, 1, 0, -1, PARTITIONS_PER_TOPIC + 1])
def test_a_topic_cannot_shrink_stay_or_explode(cluster, count):
    created(cluster, NewTopic("orders", 2))
    [outcome] = grow(cluster, NewPartitions("orders", count))
    assert code_of(outcome) is ErrorCode.invalid_partitions
    assert len(cluster.image.topics["orders"].partitions) == 2


def test_new_partitions_can_be_assigned(three):
    created(three, NewTopic("orders", 1, 2))
    [outcome] = grow(three, NewPartitions("orders", 3, [(3, 2), (1, 3)]))
    assert outcome.error is None
    assert [record.replicas for record in three.image.topics["orders"].partitions[1:]] == [(3, 2), (1, 3)]


@pytest.mark.parametrize("assignments", [[], [(1, 2)], [(1, 2)] * 3, [(1, 2), (1,)], [(1, 2), (1, 9)], [(1, 2), ()]])
def test_bad_assignments_of_new_partitions_are_refused(three, assignments):
    created(three, NewTopic("orders", 1, 2))
    [outcome] = grow(three, NewPartitions("orders", 3, assignments))
    assert code_of(outcome) is ErrorCode.invalid_replica_assignment
    assert len(three.image.topics["orders"].partitions) == 1


def test_growing_answers_for_each_topic(cluster):
    created(cluster, NewTopic("a"), NewTopic("b"))
    outcomes = grow(cluster, NewPartitions("a", 2), NewPartitions("x", 2), NewPartitions("b", 2), NewPartitions("b", 3))
    assert [(outcome.name, code_of(outcome)) for outcome in outcomes] == [
        ("a", None),
        ("x", ErrorCode.unknown_topic_or_partition),
        ("b", ErrorCode.invalid_request),
    ]
    assert len(cluster.image.topics["a"].partitions) == 2
    assert len(cluster.image.topics["b"].partitions) == 1


def test_growing_can_be_tried_without_doing_it(cluster):
    created(cluster, NewTopic("a"))
    [outcome] = grow(cluster, NewPartitions("a", 2), validate_only=True)
    assert outcome.error is None
    assert len(cluster.image.topics["a"].partitions) == 1


def test_placement_is_even_and_never_puts_two_replicas_on_one_broker(make_cluster):
    for size in range(1, 6):
        for factor in range(1, size + 1):
            cluster = make_cluster(brokers=size)
            created(cluster, NewTopic("orders", 20, factor))
            placed = [record.replicas for record in cluster.image.topics["orders"].partitions]
            assert all(len(set(replicas)) == factor for replicas in placed)
            load = Counter(broker for replicas in placed for broker in replicas)
            assert max(load.values()) - min(load.values()) <= 1


def fence(cluster, *nodes: int, draining: bool = False) -> None:
    cluster.run(
        cluster.controller.propose(
            [replace(cluster.image.brokers[node], fenced=not draining, draining=draining) for node in nodes]
        )
    )


def test_new_replicas_go_to_nodes_that_are_up_and_not_draining(three):
    fence(three, 2)
    fence(three, 3, draining=True)
    assert refusal(three, NewTopic("more", 1, 2)) is ErrorCode.invalid_replication_factor
    created(three, NewTopic("orders", 6, 1))
    assert {record.replicas for record in three.image.topics["orders"].partitions} == {(1,)}


def test_of_a_manual_assignment_those_that_are_up_are_in_sync(three):
    fence(three, 2)
    assert refusal(three, NewTopic("more", assignments=[(0, (2,))])) is ErrorCode.invalid_replica_assignment
    created(three, NewTopic("orders", assignments=[(0, (2, 3, 1))]))
    [record] = three.image.topics["orders"].partitions
    assert (record.replicas, record.isr, record.leader) == ((2, 3, 1), (3, 1), 3)


def test_internal_topics_have_three_replicas_or_as_many_as_there_are_nodes(three, cluster):
    for here, factor in ((three, 3), (cluster, 1)):
        [outcome] = here.run(here.topics.ensure([NewTopic("__consumer_offsets", 2)]))
        assert [len(record.replicas) for record in outcome.topic.partitions] == [factor] * 2


def test_without_brokers_nothing_can_be_placed(make_cluster):
    cluster = make_cluster(brokers=0)
    assert refusal(cluster, NewTopic("orders")) is ErrorCode.invalid_replication_factor


def test_a_cluster_has_no_more_partitions_than_it_may(make_cluster):
    cluster = make_cluster(max_partitions=5)
    created(cluster, NewTopic("a", 3, 1))
    [outcome] = create(cluster, NewTopic("b", 3, 1))
    assert outcome.error.code is ErrorCode.policy_violation
    created(cluster, NewTopic("c", 2, 1))
    [outcome] = cluster.run(cluster.topics.ensure([NewTopic("auto")]))
    assert outcome.error.code is ErrorCode.policy_violation
    [outcome] = cluster.run(cluster.topics.add_partitions([NewPartitions("a", 4)]))
    assert outcome.error.code is ErrorCode.policy_violation
    [outcome] = cluster.run(cluster.topics.ensure([NewTopic("__consumer_offsets", 2)]))  # groups go on
    assert outcome.error is None
    cluster.run(cluster.topics.delete([("c", None)]))
    created(cluster, NewTopic("d", 2, 1))


# -- many at once


def sizes_seen(cluster):
    """How many topics there are after each change from now on."""
    sizes = []
    cluster.controller.subscribe(lambda old, new: sizes.append(len(new.topics)))
    return sizes


def test_thousands_are_made_and_deleted_a_part_at_a_time(cluster):
    names = [f"t{number}" for number in range(2 * AT_ONCE + 1)]
    sizes = sizes_seen(cluster)
    outcomes = created(cluster, *(NewTopic(name) for name in names))
    assert [outcome.name for outcome in outcomes] == names
    assert sizes == [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1]
    outcomes = cluster.run(cluster.topics.ensure([NewTopic(name) for name in (*names, "one-more")]))
    assert [outcome.name for outcome in outcomes if outcome.error is None] == [*names, "one-more"]
    outcomes = delete(cluster, *((name, None) for name in names))
    assert [outcome.error for outcome in outcomes] == [None] * len(names)
    assert list(cluster.image.topics) == ["one-more"]


def test_names_collide_across_parts_also_when_nothing_is_made(cluster):
    wanted = [NewTopic("a.b"), *(NewTopic(f"t{number}") for number in range(AT_ONCE)), NewTopic("a_b")]
    for validate_only in (True, False):
        outcomes = create(cluster, *wanted, validate_only=validate_only)
        refused = {outcome.name: code_of(outcome) for outcome in outcomes if outcome.error is not None}
        assert refused == {"a_b": ErrorCode.invalid_topic_exception}


def test_a_part_that_fails_is_an_error_of_its_topics_and_of_those_behind_it(cluster, monkeypatch):
    names = [f"t{number}" for number in range(3 * AT_ONCE)]
    propose, calls = cluster.controller.propose, iter(range(10))

    async def failing(records):
        if next(calls) == 1:
            raise ApiError(ErrorCode.not_controller)
        return await propose(records)

    monkeypatch.setattr(cluster.controller, "propose", failing)
    outcomes = create(cluster, *(NewTopic(name) for name in names))
    codes = [code_of(outcome) for outcome in outcomes]
    assert codes == [None] * AT_ONCE + [ErrorCode.not_controller] * 2 * AT_ONCE
    assert list(cluster.image.topics) == names[:AT_ONCE]
