"""The image: what records make of it, and that it never changes."""

from __future__ import annotations

from time import process_time
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.image import (
    BrokerRecord,
    ConfigRecord,
    EligiblePartitionRecord,
    Image,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    apply,
    records_of,
)
from headrace.broker.levels import ELIGIBLE_LEADERS


def topic_id(number: int) -> UUID:
    return UUID(int=number + 1)


def partition(topic: str, index: int, leader: int = 1, leader_epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(topic, index, (leader,), (leader,), leader, leader_epoch)


def topic_records(name: str, number: int, partitions: int = 1) -> list:
    return [TopicRecord(name, topic_id(number)), *(partition(name, index) for index in range(partitions))]


def test_an_image_is_left_alone_when_records_are_applied_to_it():
    before = apply(Image(), topic_records("orders", 1, partitions=2))
    after = apply(
        before, [ConfigRecord("topic", "orders", "retention.ms", "5"), partition("orders", 1, leader_epoch=3)]
    )
    assert before.topics["orders"].configs == {}
    assert before.topics["orders"].partitions[1].leader_epoch == 0
    assert after.topics["orders"].configs == {"retention.ms": "5"}
    assert after.topics["orders"].partitions[1].leader_epoch == 3


def test_the_mappings_of_an_image_cannot_be_written():
    image = apply(Image(), topic_records("orders", 1))
    with pytest.raises(TypeError):
        image.topics["other"] = image.topics["orders"]  # type: ignore[index]
    with pytest.raises(TypeError):
        image.topics["orders"].configs["a"] = "b"  # type: ignore[index]


def test_a_partition_record_of_an_older_release_has_nobody_eligible():
    old = msgspec.msgpack.encode(["partition", "orders", 0, [1, 2], [1], 1, 5, 7, [], []])
    record = msgspec.msgpack.decode(old, type=MetadataRecord)
    assert record == PartitionRecord("orders", 0, (1, 2), (1,), 1, 5, 7)
    assert (record.elr, record.last_known_elr, record.unclean_epoch) == ((), (), -1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record)) == msgspec.msgpack.decode(old)


def test_eligible_replicas_survive_a_snapshot_and_raise_the_level():
    record = EligiblePartitionRecord("orders", 0, (1, 2), (), -1, 5, 7, elr=(2,), last_known_elr=(1,), unclean_epoch=3)
    image = apply(Image(), [*topic_records("orders", 1), record])
    assert image.level == ELIGIBLE_LEADERS
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(records_of(image)), type=list[MetadataRecord])
    assert apply(Image(), again) == image
    assert image.partition("orders", 0) == record


def test_untouched_topics_are_shared_between_images():
    before = apply(Image(), [*topic_records("a", 1), *topic_records("b", 2)])
    after = apply(before, [ConfigRecord("topic", "b", "retention.ms", "5")])
    assert after.topics["a"] is before.topics["a"]


def test_a_partition_is_found_by_topic_and_index_or_is_none():
    image = apply(Image(), topic_records("orders", 1, partitions=2))
    found = image.partition("orders", 1)
    assert found is not None
    assert found.index == 1
    assert image.partition("orders", 2) is None
    assert image.partition("orders", -1) is None
    assert image.partition("nothing", 0) is None


def test_a_topic_is_found_by_id_until_it_is_removed():
    image = apply(Image(), topic_records("orders", 1))
    found = image.topic_by_id(topic_id(1))
    assert found is not None
    assert found.name == "orders"
    gone = apply(image, [RemoveTopicRecord("orders")])
    assert gone.topic_by_id(topic_id(1)) is None
    assert gone.topics == {}


def test_a_topic_that_is_removed_and_made_again_starts_empty():
    image = apply(Image(), [*topic_records("orders", 1, 3), ConfigRecord("topic", "orders", "retention.ms", "5")])
    again = apply(image, [partition("orders", 0), RemoveTopicRecord("orders"), *topic_records("orders", 2)])
    assert again.topics["orders"].topic_id == topic_id(2)
    assert len(again.topics["orders"].partitions) == 1
    assert again.topics["orders"].configs == {}
    assert dict(again.topic_names) == {topic_id(2): "orders"}


@pytest.mark.parametrize("index", [-1, 2])
def test_a_gap_between_partitions_is_our_bug(index):
    image = apply(Image(), topic_records("orders", 1))
    with pytest.raises(AssertionError):
        apply(image, [partition("orders", index)])


def test_a_topic_created_twice_is_our_bug():
    image = apply(Image(), topic_records("orders", 1))
    with pytest.raises(AssertionError):
        apply(image, topic_records("orders", 2))


def test_a_removed_broker_config_leaves_nothing_behind():
    image = apply(Image(), [ConfigRecord("broker", "", "log.retention.ms", "5")])
    assert image.broker_configs == {"": {"log.retention.ms": "5"}}
    assert apply(image, [ConfigRecord("broker", "", "log.retention.ms", None)]) == Image()


def test_producer_ids_never_go_back():
    image = apply(Image(), [ProducerIdsRecord(2000), ProducerIdsRecord(1000)])
    assert image.next_producer_id == 2000


def test_a_topic_of_many_partitions_costs_the_same_per_partition():
    def seconds(count: int) -> float:
        records = topic_records("wide", 1, count)
        best = min(_timed(records) for _ in range(3))
        return best / count

    # Processor time, not the clock: quadratic work would make the ratio about 16, time and again.
    assert any(seconds(32_000) < 8 * seconds(2_000) for _ in range(5))


def _timed(records: list) -> float:
    begun = process_time()
    apply(Image(), records)
    return process_time() - begun


@st.composite
def histories(draw):
    """Proposals that a controller could have made."""
    proposals = []
    topics: dict[str, int] = {}
    made = 0
    for _ in range(draw(st.integers(1, 15))):
        kind = draw(st.sampled_from(["broker", "create", "grow", "remove", "config", "broker-config", "ids"]))
        if kind == "create":
            name = draw(st.sampled_from("abcdef"))
            if name not in topics:
                made += 1
                topics[name] = draw(st.integers(1, 4))
                proposals.append(topic_records(name, made, topics[name]))
        elif kind == "broker":
            proposals.append([BrokerRecord(draw(st.integers(0, 3)), "host", draw(st.integers(1, 9)))])
        elif kind == "broker-config":
            value = draw(st.sampled_from([None, "1", "2"]))
            proposals.append([ConfigRecord("broker", draw(st.sampled_from(["", "1"])), "k", value)])
        elif kind == "ids":
            proposals.append([ProducerIdsRecord(draw(st.integers(0, 9)))])
        elif topics:
            name = draw(st.sampled_from(sorted(topics)))
            if kind == "grow":
                proposals.append([partition(name, topics[name])])
                topics[name] += 1
            elif kind == "config":
                proposals.append([ConfigRecord("topic", name, "k", draw(st.sampled_from([None, "1", "2"])))])
            else:
                proposals.append([RemoveTopicRecord(name)])
                del topics[name]
    return proposals


@given(histories())
def test_one_by_one_or_all_at_once_gives_the_same_image(proposals):
    image = Image()
    for records in proposals:
        image = apply(image, records)
    assert apply(Image(), [record for records in proposals for record in records]) == image


@given(histories())
def test_a_snapshot_rebuilds_the_image(proposals):
    image = apply(Image(), [record for records in proposals for record in records])
    assert apply(Image(), records_of(image)) == image
