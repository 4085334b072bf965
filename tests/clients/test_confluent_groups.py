"""confluent-kafka (librdkafka): consumer groups."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

Place = tuple[int, int]  # partition, offset


OPEN: list[Member] = []


@pytest.fixture(autouse=True)
def close_members() -> Iterator[None]:
    """A consumer that is left to the garbage collector may hang the process."""
    yield
    while OPEN:
        OPEN.pop().client.close()


class Member:
    """A consumer that remembers what it was given and what was taken from it."""

    def __init__(self, headrace, group: str, topic: str, **config) -> None:
        settings = {
            "bootstrap.servers": headrace.bootstrap_servers,
            "log_level": 0,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 15_000,
        }
        self.topic = topic
        self.passing: set[int] = set()  # errors that it gets over by itself
        self.seen: list[Place] = []
        self.assigned: list[set[int]] = []
        self.revoked: list[set[int]] = []
        self._uncommitted: deque[Message] = deque()
        OPEN.append(self)
        self.client = Consumer(settings | {name.replace("_", "."): value for name, value in config.items()})
        self.client.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, client, places) -> None:
        self.assigned.append({place.partition for place in places})

    def _on_revoke(self, client, places) -> None:
        self.revoked.append({place.partition for place in places})
        self._commit()

    @property
    def owned(self) -> set[int]:
        return {place.partition for place in self.client.assignment()}

    def step(self) -> None:
        """Take one message, if there is one, and commit it."""
        message = self.client.poll(0.005)
        if message is not None and (message.error() is None or message.error().code() not in self.passing):
            assert message.error() is None, message.error()
            self.seen.append((message.partition(), message.offset()))
            self._uncommitted.append(message)
        self._commit()

    def _commit(self) -> None:
        try:
            while self._uncommitted:
                self.client.commit(self._uncommitted[0], asynchronous=False)
                self._uncommitted.popleft()
        except KafkaException as error:
            # As a client must: again, when its place in the new generation is known.
            if error.args[0].code() not in (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION):
                raise


def fill(headrace, topic: str, partitions: int, each: int, start: int = 0) -> set[Place]:
    client = Producer({"bootstrap.servers": headrace.bootstrap_servers})
    for offset in range(each):
        for partition in range(partitions):
            client.produce(topic, f"{offset}", partition=partition)
    assert client.flush(60) == 0
    return {(partition, start + offset) for partition in range(partitions) for offset in range(each)}


def run(members: list[Member], until: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, f"timed out; {[(len(m.seen), m.assigned, m.revoked) for m in members]}"
        for member in members:
            member.step()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go_and_every_message_is_seen_once(headrace, strategy):
    topic, group = headrace.topic(partitions=4), headrace.group()
    expected = fill(headrace, topic, 4, 50)

    def member() -> Member:
        return Member(headrace, group, topic, partition_assignment_strategy=strategy)

    first = member()
    run([first], lambda: len(first.seen) >= 60)
    assert first.owned == {0, 1, 2, 3}
    second = member()
    run([first, second], lambda: len(second.owned) == 2 and len(first.owned) == 2)
    assert first.owned | second.owned == {0, 1, 2, 3}
    expected |= fill(headrace, topic, 4, 50, start=50)  # the first may have read everything by now
    run([first, second], lambda: len(second.seen) >= 30)
    first.client.close()
    run([second], lambda: len(first.seen) + len(second.seen) >= len(expected) and second.owned == {0, 1, 2, 3})
    second.client.close()
    assert sorted(first.seen + second.seen) == sorted(expected)


def group_errors(headrace_broker) -> dict[tuple[str, str], float]:
    """How often each error was answered, by API and code, as the metrics page says."""
    with urllib.request.urlopen(headrace_broker.http_url + "/metrics", timeout=60) as page:
        rows = re.findall(r'^headrace_errors_total\{api="(\w+)",code="(\w+)"\} (\S+)', page.read().decode(), re.M)
    return {(api, code.upper()): float(count) for api, code, count in rows}


def test_healthy_members_that_rebalance_at_once_are_never_unknown(headrace, headrace_broker):
    topic, group = headrace.topic(partitions=8), headrace.group()
    before = group_errors(headrace_broker)
    members = [Member(headrace, group, topic) for _ in range(5)]
    run(members, lambda: {len(member.owned) for member in members} <= {1, 2} and owners(members) == 8)
    members += [Member(headrace, group, topic) for _ in range(3)]
    run(members, lambda: [len(member.owned) for member in members] == [1] * 8 and owners(members) == 8)
    for member in members[::2]:
        member.client.close()
    run(members[1::2], lambda: owners(members[1::2]) == 8)
    for member in members[1::2]:
        member.client.close()
    after = group_errors(headrace_broker)
    told = {code for (api, code), count in after.items() if count > before.get((api, code), 0)}
    assert "REBALANCE_IN_PROGRESS" in told, "the heartbeats' news of a rebalance are not counted"
    assert told.isdisjoint({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "INCONSISTENT_GROUP_PROTOCOL"})


def owners(members: list[Member]) -> int:
    """How many partitions have an owner; two owners would be counted twice."""
    return sum(len(member.owned) for member in members)


def test_cooperative_members_keep_what_they_need_not_give(headrace):
    topic, group = headrace.topic(partitions=6), headrace.group()
    first = Member(headrace, group, topic, partition_assignment_strategy="cooperative-sticky")
    run([first], lambda: len(first.owned) == 6)
    second = Member(headrace, group, topic, partition_assignment_strategy="cooperative-sticky")
    run([first, second], lambda: len(first.owned) == 3 and len(second.owned) == 3)
    assert [len(taken) for taken in first.revoked if taken] == [3]
    for member in (first, second):
        member.client.close()


def test_a_static_member_comes_back_without_a_rebalance(headrace):
    topic, group = headrace.topic(partitions=4), headrace.group()
    config = {"partition_assignment_strategy": "range", "session_timeout_ms": 40_000}
    stays = Member(headrace, group, topic, group_instance_id="stays", **config)
    leaves = Member(headrace, group, topic, group_instance_id="leaves", **config)
    run([stays, leaves], lambda: len(stays.owned) == 2 and len(leaves.owned) == 2)
    owned, rebalances = leaves.owned, len(stays.assigned)
    leaves.client.close()  # a static member does not leave when it closes
    returned = Member(headrace, group, topic, group_instance_id="leaves", **config)
    run([stays, returned], lambda: returned.owned == owned)
    assert len(stays.assigned) == rebalances
    assert not [taken for taken in stays.revoked[rebalances:] if taken]
    for member in (stays, returned):
        member.client.close()


def test_a_second_static_member_of_the_same_name_fences_the_first(headrace):
    topic, group = headrace.topic(), headrace.group()
    first = Member(headrace, group, topic, group_instance_id="only-one")
    run([first], lambda: first.owned == {0})
    second = Member(headrace, group, topic, group_instance_id="only-one")
    run([second], lambda: second.owned == {0})
    fenced = None
    deadline = time.monotonic() + 60
    while fenced is None and time.monotonic() < deadline:
        try:
            message = first.client.poll(0.1)
        except KafkaException as error:
            fenced = error.args[0]
            break
        if message is not None and message.error() is not None:
            fenced = message.error()
    assert fenced is not None
    assert "fenced" in fenced.str().lower() or fenced.fatal()
    second.client.close()
    first.client.close()


def test_a_silent_member_is_dropped_after_its_session(headrace):
    topic, group = headrace.topic(partitions=2), headrace.group()
    first = Member(headrace, group, topic)
    run([first], lambda: len(first.owned) == 2)
    silent = Member(headrace, group, topic, max_poll_interval_ms=6000, session_timeout_ms=6000)
    silent.passing = {KafkaError._MAX_POLL_EXCEEDED}  # a slow machine may keep it from polling too early
    run([first, silent], lambda: len(first.owned) == 1 and len(silent.owned) == 1)
    run([first], lambda: len(first.owned) == 2)  # `silent` stops polling: librdkafka leaves for it
    first.client.close()
    silent.client.close()


def test_committed_offsets_and_their_metadata_come_back(headrace):
    topic, group = headrace.topic(partitions=3), headrace.group()
    fill(headrace, topic, 3, 10)
    writer = Consumer({"bootstrap.servers": headrace.bootstrap_servers, "group.id": group})
    wanted = [TopicPartition(topic, 0, 4, "four"), TopicPartition(topic, 1, 7, "sieben ü")]
    writer.commit(offsets=wanted, asynchronous=False)
    writer.close()
    reader = Consumer({"bootstrap.servers": headrace.bootstrap_servers, "group.id": group})
    found = reader.committed([TopicPartition(topic, index) for index in range(3)], timeout=60)
    reader.close()
    assert [place.offset for place in found] == [4, 7, -1001]
    assert [place.metadata for place in found[:2]] == ["four", "sieben ü"]
    assert all(place.error is None for place in found)


def test_a_group_goes_on_where_it_stopped(headrace):
    topic, group = headrace.topic(), headrace.group()
    expected = fill(headrace, topic, 1, 50)
    first = Member(headrace, group, topic)
    run([first], lambda: len(first.seen) >= 20)
    first.client.close()
    second = Member(headrace, group, topic)
    run([second], lambda: len(first.seen) + len(second.seen) >= 50)
    second.client.close()
    assert first.seen + second.seen == sorted(expected)


def test_a_pattern_subscription_finds_topics_that_come_later(headrace):
    prefix = headrace.name("pattern")
    group = headrace.group()
    admin = AdminClient({"bootstrap.servers": headrace.bootstrap_servers})
    from confluent_kafka.admin import NewTopic

    admin.create_topics([NewTopic(f"{prefix}-a", 1)])[f"{prefix}-a"].result(60)
    member = Member(headrace, group, f"^{prefix}-.*", topic_metadata_refresh_interval_ms=200)
    run([member], lambda: len(member.client.assignment()) == 1)
    admin.create_topics([NewTopic(f"{prefix}-b", 1)])[f"{prefix}-b"].result(60)
    run([member], lambda: len(member.client.assignment()) == 2)
    member.client.close()


def test_admin_sees_a_groups_life(headrace):
    topic, group = headrace.topic(partitions=2), headrace.group()
    fill(headrace, topic, 2, 5)
    admin = AdminClient({"bootstrap.servers": headrace.bootstrap_servers})

    def state() -> ConsumerGroupState:
        return admin.describe_consumer_groups([group])[group].result(60).state

    assert state() == ConsumerGroupState.DEAD
    member = Member(headrace, group, topic, client_id="worker-7")
    run([member], lambda: len(member.seen) == 10)
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    [seen] = described.members
    assert seen.client_id == "worker-7"
    assert "127.0.0.1" in seen.host
    assert {place.partition for place in seen.assignment.topic_partitions} == {0, 1}
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(60)
    member.client.close()
    assert state() == ConsumerGroupState.EMPTY
    listed = {each.group_id: each for each in admin.list_consumer_groups().result(60).valid}
    assert listed[group].state == ConsumerGroupState.EMPTY
    only_stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(60).valid
    assert group not in {each.group_id for each in only_stable}

    wanted = [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 0)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(60)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    assert {(place.partition, place.offset) for place in found.topic_partitions} == {(0, 2), (1, 0)}
    again = Member(headrace, group, topic)
    run([again], lambda: len(again.seen) == 8)
    again.client.close()
    assert sorted(again.seen) == [(0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]

    admin.delete_consumer_groups([group])[group].result(60)
    assert state() == ConsumerGroupState.DEAD
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(60)


def test_offsets_of_a_live_group_cannot_be_reset(headrace):
    topic, group = headrace.topic(), headrace.group()
    admin = AdminClient({"bootstrap.servers": headrace.bootstrap_servers})
    member = Member(headrace, group, topic)
    run([member], lambda: member.owned == {0})
    reset = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])])
    try:
        result = reset[group].result(60)
        assert result.topic_partitions[0].error is not None
        assert result.topic_partitions[0].error.name() == "UNKNOWN_MEMBER_ID"
    except KafkaException as error:
        assert "UNKNOWN_MEMBER_ID" in str(error)
    member.client.close()
