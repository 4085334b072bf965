"""Requests of one connection take effect in the order in which they came, also when they come in one write."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace import Broker
from headrace.apis import TABLE
from headrace.apis.api import Api, Encoded
from headrace.core.errors import ErrorCode
from headrace.gateways.kafka import connection
from headrace.testing.peer import Peer, frame, header, payload
from headrace.wire.batch import build
from headrace.wire.messages import encode_answer

NUMBERS = itertools.count(1)
PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
LIST_GROUPS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 16, 19, 20, 21, 22
DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS, OFFSET_DELETE = 32, 33, 37, 42, 47
INCREMENTAL_ALTER_CONFIGS, LIST_TRANSACTIONS = 44, 66
BODIES = {PRODUCE: {"timeout": 1000}, 32004: b'{"do":"describe"}', 32005: b""}


def ordinary() -> list[Api]:
    """What clients may ask."""
    return [api for api in TABLE.values() if not api.for_peers]


def request_of(api: Api) -> bytes:
    """The emptiest request that can be read."""
    version = api.versions[0]
    body = BODIES.get(api.key, {})
    if isinstance(body, bytes):
        return frame(header(api.key, version) + body)
    return frame(payload(api.key, version, body))


class Diary:
    """What handlers do, as they do it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def keep(self, api: Api) -> Api:
        """The same API with a handler that only notes when it begins and ends, and waits if its own could."""
        private = api.private or api.hot

        def outcome() -> Any:
            return Encoded((b"" if private else encode_answer(api.key, api.versions[0], {}),))

        def handle(ctx: Any, request: Any) -> Any:
            self.lines += [("begun", api.name), ("ended", api.name)]
            return outcome()

        async def wait(ctx: Any, request: Any) -> Any:
            self.lines.append(("begun", api.name))
            for _ in range(3):
                await asyncio.sleep(0)
            self.lines.append(("ended", api.name))
            return outcome()

        waits = inspect.iscoroutinefunction(api.handle)
        overlaps = None if api.overlaps is None else lambda ctx: True
        return replace(api, handle=wait if waits else handle, admit=None, overlaps=overlaps)


@pytest.mark.parametrize("first", ordinary(), ids=lambda api: api.name)
def test_whatever_follows_a_request_begins_after_it_and_waits_if_it_must(
    broker: Broker, first: Api, monkeypatch: pytest.MonkeyPatch
):
    diary = Diary()
    monkeypatch.setattr(connection, "TABLE", {key: diary.keep(api) for key, api in TABLE.items()})
    others = ordinary()
    with Peer(broker.bootstrap_servers) as peer:
        peer.send_bytes(b"".join(request_of(first) + request_of(second) for second in others))
        for _ in range(2 * len(others)):
            peer.receive_frame()
    begun = [name for what, name in diary.lines if what == "begun"]
    assert begun == [name for second in others for name in (first.name, second.name)]
    if first.overlaps is None:
        for at, line in enumerate(diary.lines):
            if line == ("begun", first.name):
                meanwhile = diary.lines[at + 1 : diary.lines.index(("ended", first.name), at)]
                assert [name for what, name in meanwhile if what == "begun"] == []


# -- what clients see


def fresh(peer: Peer, *, records: int = 0, partitions: int = 1) -> str:
    name = f"ordered-{next(NUMBERS)}"
    assert peer.call(*create(name, partitions)).topics[0].error_code == ErrorCode.none
    for _ in range(records):
        peer.call(*produce(name))
    return name


Request = tuple[int, int, dict[str, Any]]


def create(name: str, partitions: int = 1) -> Request:
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return CREATE_TOPICS, 5, {"topics": [wanted], "timeout": 30000}


def produce(name: str, acks: int = 1) -> Request:
    row = {"index": 0, "records": build([(b"k", b"v")], timestamp_ms=1_700_000_000_000)}
    return PRODUCE, 8, {"acks": acks, "timeout": 30000, "topic_data": [{"name": name, "partition_data": [row]}]}


def offsets(name: str, timestamp: int) -> Request:
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    return LIST_OFFSETS, 5, {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}]}


def metadata(name: str) -> Request:
    return METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": False}


def alter(name: str, value: str) -> Request:
    config = {"name": "retention.ms", "value": value, "config_operation": 0}
    return (
        INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": [{"resource_type": 2, "resource_name": name, "configs": [config]}]},
    )


def describe(name: str) -> Request:
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms"]}
    return DESCRIBE_CONFIGS, 4, {"resources": [resource]}


def commit(group: str, topic: str, offset: int) -> Request:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [part]}]
    return OFFSET_COMMIT, 6, {"group_id": group, "generation_id_or_member_epoch": -1, "topics": topics}


def fetch_offset(group: str, topic: str) -> Request:
    return OFFSET_FETCH, 6, {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}


def in_one_write(peer: Peer, *requests: Request) -> list[Any]:
    peer.send_bytes(b"".join(frame(payload(*one, number)) for number, one in enumerate(requests)))
    return [peer.receive(one[0], one[1], number) for number, one in enumerate(requests)]


def offset_in(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


def delete_records(peer: Peer) -> None:
    name = fresh(peer, records=3)
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 2}]}]
    answers = in_one_write(peer, (DELETE_RECORDS, 1, {"topics": topics, "timeout": 30000}), offsets(name, -2))
    assert offset_in(answers[1]) == 2


def create_topics(peer: Peer) -> None:
    name = f"ordered-{next(NUMBERS)}"
    answers = in_one_write(peer, create(name, 3), metadata(name), produce(name), offsets(name, -1))
    assert len(answers[1].topics[0].partitions) == 3
    assert answers[2].responses[0].partition_responses[0].error_code == ErrorCode.none
    assert offset_in(answers[3]) == 1


def delete_topics(peer: Peer) -> None:
    name = fresh(peer)
    answers = in_one_write(
        peer,
        (DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 30000}),
        metadata(name),
        create(name),
        metadata(name),
    )
    assert answers[1].topics[0].error_code == ErrorCode.unknown_topic_or_partition
    assert answers[3].topics[0].error_code == ErrorCode.none


def create_partitions(peer: Peer) -> None:
    name = fresh(peer)
    wanted = {"topics": [{"name": name, "count": 4, "assignments": None}], "timeout": 30000, "validate_only": False}
    answers = in_one_write(peer, metadata(name), (CREATE_PARTITIONS, 2, wanted), metadata(name))
    assert [len(answer.topics[0].partitions) for answer in (answers[0], answers[2])] == [1, 4]


def alter_configs(peer: Peer) -> None:
    name = fresh(peer)
    answers = in_one_write(
        peer, describe(name), alter(name, "86400001"), describe(name), alter(name, "5"), describe(name)
    )
    shown = [answers[at].results[0].configs[0].value for at in (0, 2, 4)]
    assert shown[1:] == ["86400001", "5"] and shown[0] not in shown[1:]


def produce_and_look(peer: Peer) -> None:
    name = fresh(peer)
    answers = in_one_write(peer, offsets(name, -1), produce(name), offsets(name, -1), produce(name), offsets(name, -1))
    assert [offset_in(answers[at]) for at in (0, 2, 4)] == [0, 1, 2]


def commit_offsets(peer: Peer) -> None:
    name, group = fresh(peer), f"group-{next(NUMBERS)}"
    answers = in_one_write(
        peer,
        *(commit(group, name, 5), fetch_offset(group, name), commit(group, name, 7), fetch_offset(group, name)),
    )
    assert [answers[at].topics[0].partitions[0].committed_offset for at in (1, 3)] == [5, 7]


def delete_offsets(peer: Peer) -> None:
    name, group = fresh(peer), f"group-{next(NUMBERS)}"
    gone = {"group_id": group, "topics": [{"name": name, "partitions": [{"partition_index": 0}]}]}
    answers = in_one_write(peer, commit(group, name, 5), (OFFSET_DELETE, 0, gone), fetch_offset(group, name))
    assert answers[2].topics[0].partitions[0].committed_offset == -1


def delete_groups(peer: Peer) -> None:
    name, group = fresh(peer), f"group-{next(NUMBERS)}"
    everything = (LIST_GROUPS, 3, {})
    answers = in_one_write(
        peer, commit(group, name, 5), everything, (DELETE_GROUPS, 1, {"groups_names": [group]}), everything
    )
    assert [group in [one.group_id for one in answers[at].groups] for at in (1, 3)] == [True, False]


def init_producer_id(peer: Peer) -> None:
    first, name = f"txn-{next(NUMBERS)}", f"txn-{next(NUMBERS)}"
    while peer.call(*init(first)).error_code != ErrorCode.none:  # the coordinator is being made
        pass
    look = (LIST_TRANSACTIONS, 0, {})
    answers = in_one_write(peer, look, init(name), look, init(name))
    shown = [[one.transactional_id for one in answers[at].transaction_states] for at in (0, 2)]
    assert [name in names for names in shown] == [False, True]
    assert [answers[at].producer_epoch for at in (1, 3)] == [0, 1]


def init(name: str) -> Request:
    who = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1}
    return INIT_PRODUCER_ID, 4, {**who, "transaction_timeout": 60000}


PAIRS: list[Callable[[Peer], None]] = [
    delete_records,
    create_topics,
    delete_topics,
    create_partitions,
    alter_configs,
    produce_and_look,
    commit_offsets,
    delete_offsets,
    delete_groups,
    init_producer_id,
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_a_look_sees_what_was_done_before_it_and_nothing_that_was_done_after_it(peer: Peer, pair: Any):
    for _ in range(5):
        pair(peer)


def test_the_first_commits_of_a_broker_are_not_overtaken():
    """The groups' topic is being made meanwhile."""
    with Broker() as broker, Peer(broker.bootstrap_servers) as peer:
        commit_offsets(peer)
