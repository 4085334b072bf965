"""The APIs of the new group protocol (KIP-848) through the wire, against a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from headrace import Broker
from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer

HEARTBEAT, DESCRIBE, LIST, DESCRIBE_CLASSIC, COMMIT, FETCH, JOIN, CREATE, GROW, DELETE = (
    68,
    69,
    16,
    15,
    8,
    9,
    11,
    19,
    37,
    42,
)
NONE = ErrorCode.none
NUMBERS = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(group_initial_rebalance_delay_ms=0, group_consumer_heartbeat_interval_ms=700) as broker:
        yield broker


@pytest.fixture
def scene(broker: Broker) -> Iterator[Scene]:
    with Peer(broker.bootstrap_servers) as peer:
        yield Scene(peer)


class Scene:
    """A topic and a group of its own."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        number = next(NUMBERS)
        self.topic, self.group = f"topic{number}", f"group{number}"
        self.topic_id = self.create(self.topic, 2)

    def create(self, name: str, partitions: int) -> UUID:
        made = self.peer.call(
            CREATE,
            7,
            {"topics": [{"name": name, "num_partitions": partitions, "replication_factor": 1}], "timeout": 5000},
        )
        assert made.topics[0].error_code == NONE
        return made.topics[0].topic_id

    def beat(self, epoch: int, *, member: str = "m", version: int = 1, **fields: Any) -> Any:
        request = {"group_id": self.group, "member_id": member, "member_epoch": epoch, **fields}
        request.setdefault("topic_partitions", None)
        return self.peer.call(HEARTBEAT, version, request)

    def enter(self, *, member: str = "m", **fields: Any) -> Any:
        full = {"rebalance_timeout": 60_000, "subscribed_topic_names": [self.topic], "topic_partitions": []}
        return self.beat(0, member=member, **{**full, **fields})

    def describe(self, version: int = 1) -> Any:
        request = {"group_ids": [self.group], "include_authorized_operations": True}
        return self.peer.call(DESCRIBE, version, request).groups[0]

    def commit(self, epoch: int, *, version: int = 9, member: str = "m") -> ErrorCode:
        topic = {
            "name": self.topic,
            "topic_id": self.topic_id,
            "partitions": [{"partition_index": 0, "committed_offset": 3}],
        }
        request = {
            "group_id": self.group,
            "generation_id_or_member_epoch": epoch,
            "member_id": member,
            "topics": [topic],
        }
        return self.peer.call(COMMIT, version, request).topics[0].partitions[0].error_code

    def fetch(self, epoch: int, *, version: int = 9, member: str | None = "m") -> Any:
        topics = [{"name": self.topic, "topic_id": self.topic_id, "partition_indexes": [0]}]
        group = {"group_id": self.group, "member_id": member, "member_epoch": epoch, "topics": topics}
        return self.peer.call(FETCH, version, {"groups": [group], "require_stable": True}).groups[0]


def assigned(answer: Any) -> dict[UUID, tuple[int, ...]]:
    return {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_stays_and_leaves(scene: Scene, version: int) -> None:
    joined = scene.enter(version=version)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (NONE, "m", 1)
    assert joined.heartbeat_interval.total_seconds() == 0.7
    assert assigned(joined) == {scene.topic_id: (0, 1)}
    stays = scene.beat(1, version=version)
    assert (stays.error_code, stays.member_epoch, stays.assignment) == (NONE, 1, None)
    left = scene.beat(-1, version=version)
    assert (left.error_code, left.member_epoch) == (NONE, -1)


def test_version_0_gives_an_id_and_version_1_wants_one(scene: Scene) -> None:
    assert UUID(scene.enter(member="", version=0).member_id)
    refused = scene.enter(member="")
    assert (refused.error_code, refused.error_message) == (ErrorCode.invalid_request, "MemberId can't be empty.")


def test_errors_come_with_a_sentence(scene: Scene) -> None:
    unknown = scene.beat(1)
    assert unknown.error_code == ErrorCode.group_id_not_found
    assert unknown.error_message == f"Consumer group {scene.group} not found."
    scene.enter()
    assert scene.beat(7).error_code == ErrorCode.fenced_member_epoch
    assert scene.enter(member="x", server_assignor="none").error_code == ErrorCode.unsupported_assignor
    bad = scene.enter(member="x", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert bad.error_code == ErrorCode.invalid_regular_expression


def test_new_partitions_and_new_topics_reach_members_by_themselves(scene: Scene) -> None:
    regex = f"{scene.topic}.*"
    joined = scene.enter(subscribed_topic_names=None, subscribed_topic_regex=regex)
    assert assigned(joined) == {scene.topic_id: (0, 1)}
    scene.peer.call(GROW, 3, {"topics": [{"name": scene.topic, "count": 3, "assignments": None}], "timeout": 5000})
    assert assigned(scene.beat(1)) == {scene.topic_id: (0, 1, 2)}
    other = scene.create(f"{scene.topic}-more", 1)
    assert assigned(scene.beat(2)) == {scene.topic_id: (0, 1, 2), other: (0,)}


def test_a_group_is_described_with_epochs_targets_and_kinds_of_members(scene: Scene) -> None:
    scene.enter(instance_id="i", rack_id="r", server_assignor="range")
    scene.enter(member="n", subscribed_topic_names=[], subscribed_topic_regex=scene.topic)
    found = scene.describe()
    assert (found.error_code, found.group_state) == (NONE, "Reconciling")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (2, 2, "range")
    first, second = found.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m", "i", "r", 1)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == ((scene.topic,), None)
    assert (second.subscribed_topic_names, second.subscribed_topic_regex) == ((), scene.topic)
    assert [t.partitions for t in first.assignment.topic_partitions] == [(0, 1)]
    assert [(t.topic_name, t.partitions) for t in second.target_assignment.topic_partitions] == [(scene.topic, (1,))]
    assert (first.member_type, second.member_type) == (1, 1)
    assert not hasattr(scene.describe(0).members[0], "member_type")


def test_each_kind_of_group_is_described_by_its_own_api(scene: Scene) -> None:
    assert scene.describe().error_code == ErrorCode.group_id_not_found
    scene.enter()
    classic = scene.peer.call(DESCRIBE_CLASSIC, 6, {"groups": [scene.group]}).groups[0]
    assert (classic.error_code, classic.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert classic.error_message == f"Group {scene.group} is not a classic group."


def test_groups_are_listed_by_type_and_state(scene: Scene) -> None:
    def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
        groups = scene.peer.call(LIST, 5, {"states_filter": [], "types_filter": [], **filters}).groups
        return {each.group_id: (each.protocol_type, each.group_state, each.group_type) for each in groups}

    scene.enter()
    assert listed()[scene.group] == ("consumer", "Stable", "consumer")
    assert scene.group in listed(types_filter=["Consumer"], states_filter=["stable"])
    assert scene.group not in listed(types_filter=["classic"])
    assert scene.group not in listed(states_filter=["Reconciling"])


@pytest.mark.parametrize("version", [9, 10])
def test_commits_and_fetches_carry_the_members_epoch(scene: Scene, version: int) -> None:
    scene.enter()
    assert scene.commit(1, version=version) == NONE
    assert scene.commit(2, version=version) == ErrorCode.stale_member_epoch
    assert scene.commit(1, version=version, member="x") == ErrorCode.unknown_member_id
    assert scene.fetch(1, version=version).topics[0].partitions[0].committed_offset == 3
    assert scene.fetch(2, version=version).error_code == ErrorCode.stale_member_epoch
    assert scene.fetch(1, version=version, member="x").error_code == ErrorCode.unknown_member_id
    assert scene.fetch(-1, version=version, member=None).error_code == NONE


def test_older_versions_are_not_for_members_of_the_new_protocol(scene: Scene) -> None:
    scene.enter()
    assert scene.commit(1, version=8) == ErrorCode.unsupported_version


def test_a_group_with_members_is_not_deleted_and_an_empty_one_is(scene: Scene) -> None:
    def delete() -> ErrorCode:
        return scene.peer.call(DELETE, 2, {"groups_names": [scene.group]}).results[0].error_code

    scene.enter()
    assert delete() == ErrorCode.non_empty_group
    scene.beat(-1)
    assert delete() == NONE
    assert scene.describe().error_code == ErrorCode.group_id_not_found


def test_a_classic_member_joins_a_new_group_at_once(scene: Scene) -> None:
    scene.enter()
    name = scene.topic.encode()
    metadata = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    joined = scene.peer.call(
        JOIN,
        9,
        {
            "group_id": scene.group,
            "member_id": "old",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        },
    )
    assert (joined.error_code, joined.generation_id, joined.leader, joined.protocol_name) == (NONE, 2, "", "range")
    assert [member.member_type for member in scene.describe().members] == [1, 0]


def test_the_new_protocol_is_a_finalized_feature(scene: Scene) -> None:
    answer = scene.peer.call(18, 4, {"client_software_name": "test", "client_software_version": "1"})
    assert {each.name: each.max_version_level for each in answer.finalized_features}["group.version"] == 1
