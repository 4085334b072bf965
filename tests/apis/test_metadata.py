"""Metadata: who asks for what, in every version."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import msgspec
import pytest

from headrace.apis.metadata import API
from headrace.broker.departures import LINGER_S
from headrace.broker.encoded_topics import EncodedTopics
from headrace.broker.image import BrokerRecord, PartitionRecord, RemoveTopicRecord
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)
ALL_TOPIC_OPERATIONS = 0b1101_1111_1000
ALL_CLUSTER_OPERATIONS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)


def named(*names):
    return [{"name": name} for name in names]


def errors(answer):
    return {topic.name: topic.error_code for topic in answer.topics}


def test_the_versions_are_those_of_kafka():
    assert API.key == 3
    assert API.versions == (0, 13)


@pytest.mark.parametrize("version", VERSIONS)
def test_brokers_and_partitions_are_told_in_every_version(make_admin, version):
    admin = make_admin(brokers=2)
    admin.create(NewTopic("orders", 2, 2))
    answer = admin.call(API, version, topics=named("orders"))
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "host1", 9092), (2, "host2", 9092)]
    [topic] = answer.topics
    assert (topic.name, topic.error_code) == ("orders", ErrorCode.none)
    records = admin.image.topics["orders"].partitions
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in topic.partitions] == [
        (record.index, record.leader, record.replicas, record.isr) for record in records
    ]
    if version >= 1:
        assert answer.controller_id == 1
        assert answer.brokers[0].rack == "rack1"
    if version >= 2:
        assert answer.cluster_id == "a-cluster"
    if version >= 10:
        assert topic.topic_id == admin.image.topics["orders"].topic_id


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_list_means_all_in_version_0_and_none_after(admin, version):
    admin.create(NewTopic("orders"))
    answer = admin.call(API, version, topics=[])
    assert len(answer.topics) == (1 if version == 0 else 0)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_null_means_all_topics_and_internal_ones_are_marked(admin, version):
    admin.create(NewTopic("orders"), NewTopic("__consumer_offsets", 3))
    answer = admin.call(API, version, topics=None)
    assert {topic.name: topic.is_internal for topic in answer.topics} == {"orders": False, "__consumer_offsets": True}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_topic_is_created_and_ready_at_once(make_admin, version):
    admin = make_admin(num_partitions=3)
    answer = admin.call(API, version, topics=named("new", "new"))
    assert errors(answer) == {"new": ErrorCode.none}
    assert len(answer.topics[0].partitions) == 3
    assert len(admin.image.topics["new"].partitions) == 3


@pytest.mark.parametrize("version", VERSIONS[4:])
def test_a_request_can_forbid_creation(admin, version):
    answer = admin.call(API, version, topics=named("new"), allow_auto_topic_creation=False)
    assert errors(answer) == {"new": ErrorCode.unknown_topic_or_partition}
    assert admin.image.topics == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_can_forbid_creation(make_admin, version):
    admin = make_admin(auto_create_topics=False)
    answer = admin.call(API, version, topics=named("new"))
    assert errors(answer) == {"new": ErrorCode.unknown_topic_or_partition}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("auto_create", [True, False])
def test_invalid_names_are_told_as_such(make_admin, version, auto_create):
    admin = make_admin(auto_create_topics=auto_create)
    answer = admin.call(API, version, topics=named("a/b", "..", "x" * 300))
    assert set(errors(answer).values()) == {ErrorCode.invalid_topic_exception}
    assert admin.image.topics == {}


def test_asking_for_an_internal_topic_does_not_create_it(admin):
    answer = admin.call(API, 12, topics=named("__consumer_offsets"))
    assert errors(answer) == {"__consumer_offsets": ErrorCode.unknown_topic_or_partition}
    assert answer.topics[0].is_internal


def test_a_name_that_collides_is_not_created(admin):
    admin.create(NewTopic("a.b"))
    assert errors(admin.call(API, 12, topics=named("a_b"))) == {"a_b": ErrorCode.invalid_topic_exception}


@pytest.mark.parametrize("version", [12, 13])
def test_topics_can_be_asked_for_by_id(admin, version):
    admin.create(NewTopic("orders"))
    known, stranger = admin.image.topics["orders"].topic_id, UUID(int=99)
    asked = [{"topic_id": topic_id, "name": None} for topic_id in (known, stranger, known)]
    answer = admin.call(API, version, topics=asked)
    assert [(t.topic_id, t.name, t.error_code) for t in answer.topics] == [
        (known, "orders", ErrorCode.none),
        (stranger, None, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_versions_10_and_11_refuse_ids_as_kafka_does(admin, version):
    admin.create(NewTopic("orders"))
    known = admin.image.topics["orders"].topic_id
    for asked in ({"topic_id": known, "name": "orders"}, {"name": None}):
        answer = admin.call(API, version, topics=[asked])
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]


def test_a_topic_without_name_and_id_is_refused(admin):
    answer = admin.call(API, 12, topics=[{"name": None}])
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", VERSIONS[8:])
@pytest.mark.parametrize("asked", [True, False])
def test_authorized_operations_are_told_when_asked_for(admin, version, asked):
    admin.create(NewTopic("orders"))
    fields = {"include_topic_authorized_operations": asked}
    if version <= 10:
        fields["include_cluster_authorized_operations"] = asked
    answer = admin.call(API, version, topics=named("orders"), **fields)
    assert answer.topics[0].topic_authorized_operations == (ALL_TOPIC_OPERATIONS if asked else NOT_ASKED)
    if version <= 10:
        assert answer.cluster_authorized_operations == (ALL_CLUSTER_OPERATIONS if asked else NOT_ASKED)


def test_a_node_that_was_just_fenced_is_still_told_and_one_that_is_long_gone_is_not(make_admin, monkeypatch):
    admin = make_admin(brokers=3)
    departures = admin.service.departures
    monkeypatch.setattr(departures, "_now", lambda: 100.0)
    admin.service.controller.subscribe(departures.changed)
    admin.propose(BrokerRecord(2, "host2", 9092, fenced=True))
    assert [node.node_id for node in admin.call(API, 12, topics=[]).brokers] == [1, 2, 3]
    monkeypatch.setattr(departures, "_now", lambda: 100.0 + LINGER_S)
    assert [node.node_id for node in admin.call(API, 12, topics=[]).brokers] == [1, 3]


def test_an_answer_waits_for_the_leaders_that_were_asked_for(make_admin, monkeypatch):
    admin = make_admin(brokers=2)
    admin.create(NewTopic("here"), NewTopic("there"))
    admin.propose(PartitionRecord("there", 0, replicas=(2,), isr=(2,), leader=2, leader_epoch=1))
    waited = []

    async def settled(leaders):
        waited.append(set(leaders()))

    departures = SimpleNamespace(is_in_doubt=True, settled=settled, lingers=lambda node: False)
    monkeypatch.setattr(admin.service, "departures", departures)
    there = admin.image.topics["there"].topic_id
    here = admin.image.topics["here"].partitions[0].leader
    for topics in (named("there", "nowhere"), named("here"), [{"name": None, "topic_id": there}], None):
        admin.call(API, 12, topics=topics, allow_auto_topic_creation=False)
    assert waited == [{2}, {here}, {here, 2}, {here, 2}]
    departures.is_in_doubt = False
    admin.call(API, 12, topics=None)
    assert len(waited) == 4


def test_a_partition_without_leader_says_so_and_names_its_offline_replicas(admin):
    admin.create(NewTopic("orders"))
    admin.propose(PartitionRecord("orders", 0, replicas=(1, 7), isr=(7,), leader=-1, leader_epoch=4))
    [topic] = admin.call(API, 12, topics=named("orders")).topics
    [partition] = topic.partitions
    assert partition.error_code is ErrorCode.leader_not_available
    assert (partition.leader_id, partition.leader_epoch, partition.offline_replicas) == (-1, 4, (7,))


@pytest.mark.parametrize("version", VERSIONS)
def test_creation_on_a_dead_disk_is_an_error_of_each_topic(admin, version):
    admin.service.log.broken = True
    answer = admin.call(API, version, topics=named("a", "b"))
    assert errors(answer) == {"a": ErrorCode.kafka_storage_error, "b": ErrorCode.kafka_storage_error}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", [False, True])
def test_what_is_kept_is_what_would_be_encoded_anew(make_admin, version, asked):
    """For all topics and for some, before and after a change, and whatever versions are asked for in between."""
    admin = make_admin(brokers=3, auto_create_topics=False)
    admin.create(*(NewTopic(f"t{number}", partitions=number % 3 + 1) for number in range(20)))

    def answers() -> list[object]:
        fields = {"include_topic_authorized_operations": asked, "allow_auto_topic_creation": False}
        named = [{"name": f"t{number}"} for number in (3, 17, 99, 4)]
        everything = [] if version == 0 else None
        return [admin.call(API, version, topics=topics, **fields) for topics in (everything, named)]

    def anew() -> list[object]:
        kept, admin.service.encoded_topics = admin.service.encoded_topics, EncodedTopics()
        try:
            return answers()
        finally:
            admin.service.encoded_topics = kept

    assert answers() == answers() == anew()
    record = admin.image.topics["t4"].partitions[0]
    admin.propose(msgspec.structs.replace(record, leader=-1, leader_epoch=9))
    assert answers() == anew()
    admin.propose(msgspec.structs.replace(admin.image.brokers[2], fenced=True))
    assert answers() == answers() == anew()
    admin.propose(RemoveTopicRecord("t3"))
    assert answers() == answers() == anew()


def test_what_is_kept_has_a_limit(make_admin):
    admin = make_admin()
    admin.create(*(NewTopic(f"t{number}") for number in range(50)))
    admin.service.encoded_topics = EncodedTopics(kept_bytes=1000)
    for version in VERSIONS:
        admin.call(API, version, topics=[] if version == 0 else None)
    one_kind = 2 * 50 * 100
    assert admin.service.encoded_topics.size_bytes < 1000 + one_kind
