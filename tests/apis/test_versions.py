"""Every API at every version that we serve, over a real socket: the answer must decode completely, without an error."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from headrace import Broker
from headrace.apis import TABLE as EVERYTHING
from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer
from headrace.wire.batch import build
from headrace.wire.schema import versions_of

# Apache Kafka 4.3's minimums: lower ones need record formats and requests that nobody sends any more.
MINIMUMS = {
    **{0: 0, 1: 4, 2: 1, 3: 0, 8: 2, 9: 1, 10: 0, 11: 0, 12: 0, 13: 0, 14: 0, 15: 0, 16: 0, 17: 0, 18: 0, 19: 2, 20: 1},
    **{
        21: 0,
        22: 0,
        23: 2,
        24: 0,
        25: 0,
        26: 0,
        27: 1,
        28: 0,
        29: 1,
        30: 1,
        31: 1,
        32: 1,
        33: 0,
        34: 1,
        35: 1,
        36: 0,
        37: 0,
    },
    **{42: 0, 43: 0, 44: 0, 45: 0, 46: 0, 47: 0, 48: 0, 49: 0, 50: 0, 51: 0, 55: 0, 57: 0, 60: 0, 61: 0, 65: 0, 66: 0},
    **{68: 0, 69: 0, 71: 0, 72: 0, 74: 0, 75: 0},
}
MAXIMUMS = {
    **{0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 17: 1, 18: 4, 19: 7},
    **{
        20: 6,
        21: 2,
        22: 5,
        23: 4,
        24: 5,
        25: 4,
        26: 5,
        27: 2,
        28: 5,
        29: 3,
        30: 3,
        31: 3,
        32: 4,
        33: 2,
        34: 2,
        35: 5,
        36: 2,
    },
    **{37: 3, 42: 2, 43: 2, 44: 1, 45: 1, 46: 0, 47: 0, 48: 1, 49: 1, 50: 0, 51: 0, 55: 2, 57: 2, 60: 2, 61: 0, 65: 0},
    **{66: 2, 68: 1, 69: 1, 71: 0, 72: 0, 74: 1, 75: 0},
}
TABLE = {key: api for key, api in EVERYTHING.items() if not (api.for_peers or api.private)}  # what clients may use
ROWS = [
    (api.key, version)
    for api in TABLE.values()
    for version in range(api.versions[0], api.for_peers_from or api.versions[1] + 1)
]
IDS = [f"{TABLE[key].name}-v{version}" for key, version in ROWS]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # Records of any age are kept: tests like fixed times.
    with Broker(group_initial_rebalance_delay_ms=0, storage_retention_ms=-1) as broker:
        yield broker


@pytest.fixture(scope="module")
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.bootstrap_servers) as peer:
        yield peer


class Scene:
    """A topic with a record, and names that are free, for one request."""

    def __init__(self, peer: Peer) -> None:
        number = next(NUMBERS)
        self._peer = peer
        self.idle_group = f"idle-{number}"
        self.topic, self.group, self.fresh = f"topic-{number}", f"group-{number}", f"fresh-{number}"
        topic = {"name": self.topic, "num_partitions": 1, "replication_factor": 1}
        created = peer.call(19, 7, {"topics": [topic], "timeout": 5000})
        self.topic_id: UUID = created.topics[0].topic_id
        self.batch = build([(b"k", b"v")], timestamp_ms=1_700_000_000_000)
        rows = [{"index": 0, "records": self.batch}]
        produced = peer.call(
            0, 9, {"acks": -1, "timeout": 5000, "topic_data": [{"name": self.topic, "partition_data": rows}]}
        )
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.none
        joining = {
            "group_id": self.group,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        joined = peer.call(11, 3, joining)
        self.member, self.generation = joined.member_id, joined.generation_id
        assert joined.error_code == ErrorCode.none

    def transaction(self) -> dict[str, Any]:
        """A transactional producer with an open transaction that holds the scene's partition and group."""
        identity = self._peer.call(
            22,
            4,
            {"transactional_id": self.fresh, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
        )
        assert identity.error_code == ErrorCode.none
        named = {
            "transactional_id": self.fresh,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
        }
        added = self._peer.call(24, 3, self.additions(named))
        assert list(errors(added)) == []
        assert self._peer.call(25, 3, {**named, "group_id": self.idle_group}).error_code == ErrorCode.none
        return named

    def additions(self, named: dict[str, Any]) -> dict[str, Any]:
        partitions = [{"name": self.topic, "partitions": [0]}]
        older = {f"v3_and_below_{name}": value for name, value in named.items()}
        return {**older, "v3_and_below_topics": partitions, "transactions": [{**named, "topics": partitions}]}

    def request(self, key: int) -> dict[str, Any]:
        """A valid request under the field names of all versions."""
        return REQUESTS[key](self)


def _only(**fields: Any) -> dict[str, Any]:
    return fields


def _member(scene: Scene, **more: Any) -> dict[str, Any]:
    return {"group_id": scene.group, "generation_id": scene.generation, "member_id": scene.member, **more}


# Field names differ from version to version; those that a version does not have are dropped.
REQUESTS: dict[int, Any] = {
    0: lambda s: _only(
        acks=-1,
        timeout=5000,
        topic_data=[{"name": s.topic, "topic_id": s.topic_id, "partition_data": [{"index": 0, "records": s.batch}]}],
    ),
    1: lambda s: _only(
        replica_id=-1,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[
            {
                "topic": s.topic,
                "topic_id": s.topic_id,
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}],
            }
        ],
    ),
    2: lambda s: _only(
        replica_id=-1, topics=[{"name": s.topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    ),
    3: lambda s: _only(topics=[{"name": s.topic}], allow_auto_topic_creation=False),
    8: lambda s: _only(
        group_id=s.group,
        generation_id_or_member_epoch=s.generation,
        member_id=s.member,
        topics=[
            {
                "name": s.topic,
                "topic_id": s.topic_id,
                "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}],
            }
        ],
    ),
    9: lambda s: _only(
        group_id=s.group,
        topics=[{"name": s.topic, "partition_indexes": [0]}],
        groups=[
            {
                "group_id": s.group,
                "topics": [{"name": s.topic, "topic_id": s.topic_id, "partition_indexes": [0]}],
            }
        ],
    ),
    10: lambda s: _only(key=s.group, key_type=0, coordinator_keys=[s.group]),
    11: lambda s: _only(
        group_id=s.fresh,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    ),
    12: lambda s: _member(s),
    13: lambda s: _only(group_id=s.group, member_id=s.member, members=[{"member_id": s.member}]),
    14: lambda s: _member(
        s,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": s.member, "assignment": b""}],
    ),
    15: lambda s: _only(groups=[s.group]),
    16: lambda s: {},
    18: lambda s: _only(client_software_name="peer", client_software_version="1.0"),
    19: lambda s: _only(
        topics=[
            {
                "name": s.fresh,
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": [{"name": "retention.ms", "value": "1000"}],
            }
        ],
        timeout=5000,
    ),
    20: lambda s: _only(topics=[{"name": s.topic}], topic_names=[s.topic], timeout=5000),
    21: lambda s: _only(topics=[{"name": s.topic, "partitions": [{"partition_index": 0, "offset": 1}]}], timeout=5000),
    22: lambda s: _only(transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1),
    23: lambda s: _only(
        replica_id=-1,
        topics=[
            {"topic": s.topic, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]},
        ],
    ),
    24: lambda s: s.additions(s.transaction()),
    25: lambda s: _only(**s.transaction(), group_id=s.idle_group),
    26: lambda s: _only(**s.transaction(), committed=True),
    27: lambda s: _only(
        markers=[
            {
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": True,
                "topics": [{"name": s.topic, "partition_indexes": [0]}],
            }
        ]
    ),
    28: lambda s: _only(
        **s.transaction(),
        group_id=s.idle_group,
        generation_id=-1,
        member_id="",
        topics=[
            {
                "name": s.topic,
                "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}],
            }
        ],
    ),
    61: lambda s: _only(topics=[{"name": s.topic, "partition_indexes": [0]}]),
    65: lambda s: _only(transactional_ids=[s.transaction()["transactional_id"]]),
    66: lambda s: {},
    32: lambda s: _only(
        resources=[{"resource_type": 2, "resource_name": s.topic, "configuration_keys": None}],
        include_synonyms=True,
        include_documentation=True,
    ),
    33: lambda s: _only(
        resources=[
            {"resource_type": 2, "resource_name": s.topic, "configs": [{"name": "retention.ms", "value": "1000"}]}
        ]
    ),
    35: lambda s: _only(topics=[{"topic": s.topic, "partitions": [0]}]),
    37: lambda s: _only(topics=[{"name": s.topic, "count": 3, "assignments": None}], timeout=5000),
    42: lambda s: _only(groups_names=[s.group]),
    43: lambda s: _only(
        election_type=0, topic_partitions=[{"topic": s.topic, "partitions": [0]}], timeout=5000
    ),
    44: lambda s: _only(
        resources=[
            {
                "resource_type": 2,
                "resource_name": s.topic,
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}],
            }
        ]
    ),
    45: lambda s: _only(
        topics=[{"name": s.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        timeout=5000,
        allow_replication_factor_change=True,
    ),
    46: lambda s: _only(topics=[{"name": s.topic, "partition_indexes": [0]}], timeout=5000),
    55: lambda s: _only(topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]),
    57: lambda s: _only(
        feature_updates=[
            {"feature": "group.version", "max_version_level": 1, "allow_downgrade": False, "upgrade_type": 1}
        ],
        timeout=5000,
        validate_only=False,
    ),
    47: lambda s: _only(
        group_id=s.group, topics=[{"name": s.topic, "partitions": [{"partition_index": 0}]}]
    ),
    60: lambda s: _only(include_cluster_authorized_operations=True),
    68: lambda s: _only(
        group_id=s.fresh,
        member_id="m1",
        member_epoch=0,
        rebalance_timeout=60_000,
        subscribed_topic_names=[s.topic],
        topic_partitions=[],
    ),
    69: lambda s: _only(group_ids=[s.group], include_authorized_operations=True),
    74: lambda s: {},
    75: lambda s: _only(topics=[{"name": s.topic}], response_partition_limit=100),
}  # fmt: skip

# Where a valid request gets an error that is part of the dance.
EXPECTED: dict[int, set[ErrorCode]] = {
    11: {ErrorCode.member_id_required},  # from v4 on (KIP-394)
    27: {ErrorCode.cluster_authorization_failed},  # markers come from brokers only
    42: {ErrorCode.non_empty_group},
    69: {ErrorCode.group_id_not_found},  # it is a classic group
    43: {ErrorCode.election_not_needed},
    12: {ErrorCode.rebalance_in_progress},  # the leader has not brought its assignment yet
    8: {ErrorCode.rebalance_in_progress},
    47: {ErrorCode.group_subscribed_to_topic},  # a member whose subscription cannot be read counts as subscribed
}


def errors(answer: Any, path: str = "") -> Iterator[tuple[str, ErrorCode]]:
    """Every error code in an answer, with the place where it stands."""
    if isinstance(answer, tuple):
        for number, item in enumerate(answer):
            yield from errors(item, f"{path}[{number}]")
    elif dataclasses.is_dataclass(answer):
        for field in dataclasses.fields(answer):
            yield from errors(getattr(answer, field.name), f"{path}.{field.name}")
    elif isinstance(answer, ErrorCode) and answer != ErrorCode.none:
        yield path, answer


@pytest.mark.parametrize(("key", "version"), ROWS, ids=IDS)
def test_a_valid_request_gets_a_whole_answer_without_error(peer: Peer, key: int, version: int):
    request = Scene(peer).request(key)
    answer = peer.call(key, version, request)
    assert {code for _, code in errors(answer)} <= EXPECTED.get(key, set()), list(errors(answer))


@pytest.mark.parametrize("version", range(TABLE[11].versions[0], TABLE[11].versions[1] + 1))
def test_a_new_member_must_ask_twice_from_join_group_4_on(peer: Peer, version: int):
    request = REQUESTS[11](Scene(peer))
    answer = peer.call(11, version, request)
    assert answer.member_id
    if version >= 4:
        assert answer.error_code == ErrorCode.member_id_required
        answer = peer.call(11, version, request | {"member_id": answer.member_id})
    assert answer.error_code == ErrorCode.none
    assert answer.generation_id == 1


@pytest.mark.parametrize("version", range(TABLE[9].versions[0], TABLE[9].versions[1] + 1))
def test_an_unknown_group_has_no_offset_and_no_error(peer: Peer, version: int):
    scene = Scene(peer)
    scene.group = scene.fresh
    answer = peer.call(9, version, REQUESTS[9](scene))
    topics = answer.topics if version < 8 else answer.groups[0].topics
    assert topics[0].partitions[0].committed_offset == -1
    assert list(errors(answer)) == []


@pytest.mark.parametrize(("key", "version"), ROWS, ids=IDS)
def test_an_empty_request_gets_a_whole_answer(broker: Broker, key: int, version: int):
    with Peer(broker.bootstrap_servers) as peer:
        peer.call(key, version, {"acks": 1} if key == 0 else {})


@pytest.mark.parametrize("key", TABLE)
def test_versions_are_those_of_kafka(broker: Broker, key: int):
    with Peer(broker.bootstrap_servers) as peer:
        rows = {row.api_key: row for row in peer.call(18, 4, REQUESTS[18](None)).api_keys}
    row = rows[key]
    assert row.min_version == MINIMUMS[key]
    assert MINIMUMS[key] <= row.max_version <= MAXIMUMS[key]


def test_what_is_advertised_is_what_is_served(broker: Broker):
    with Peer(broker.bootstrap_servers) as peer:
        advertised = {row.api_key for row in peer.call(18, 3, REQUESTS[18](None)).api_keys}
    assert advertised == set(TABLE)
    assert all(api.versions[1] in versions_of(api.key) for api in TABLE.values())


def test_every_api_has_a_request_here():
    assert set(TABLE) <= set(REQUESTS)
