"""What a reader asks of a Kafka cluster besides records: partitions, offsets, and a group's committed offsets.

Rules:
- Every method is one question with one answer; what passes by itself (a leader that moves, a broker that restarts, a
  coordinator that loads) is asked again until the time is up.
- Topics are never created by asking for them.
- Errors are one sentence and say what was attempted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from headrace.client.errors import ClientError, UnreachableError
from headrace.core.errors import ErrorCode, ProtocolError
from headrace.spark.link import Address, bootstrap_addresses, borrow, discard
from headrace.spark.options import Place, SourceOptions, Subscription

METADATA: Final = 3
LIST_OFFSETS: Final = 2
FIND_COORDINATOR: Final = 10
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9

RECOVERY_SECONDS: Final = 60.0  # how long a cluster that has answered before may be away
GROUP_SECONDS: Final = 5.0  # and a group's coordinator: a query can go on without it
_PAUSE_SECONDS: Final = 0.2
_MISSING: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_PASSING: Final = frozenset(
    {
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.kafka_storage_error,
    }
)

T = TypeVar("T")


class PassingError(ClientError):
    """Will be right again in a moment."""


class MissingError(ClientError):
    """A topic or partition that does not exist (any more)."""


class Partition(NamedTuple):
    """Where a partition is read."""

    leader: Address
    topic_id: UUID | None


class Committed(NamedTuple):
    offset: int
    note: str


def raise_for(code: ErrorCode, doing: str) -> None:
    if code == ErrorCode.none:
        return
    sentence = f"cannot {doing}: {code.name.replace('_', ' ')}"
    if code in _PASSING:
        raise PassingError(sentence, code.name.upper())
    if code in _MISSING:
        raise MissingError(sentence, code.name.upper())
    raise ClientError(sentence, code.name.upper())


class Cluster:
    """See the module."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bootstrap = bootstrap_addresses(options.bootstrap)
        self._brokers: tuple[Address, ...] = ()
        self._coordinators: dict[str, Address] = {}

    def partitions(self, subscription: Subscription, *, missing_ok: bool = False) -> dict[Place, Partition]:
        """The partitions that a subscription means now.

        Raises MissingError if a named topic or partition does not exist, unless `missing_ok`. A pattern may match
        anywhere in a name, as in Spark's own connector.
        """
        if subscription.assigned:
            topics = tuple(dict.fromkeys(topic for topic, _ in subscription.assigned))
            found = self._patiently(lambda: self._metadata(topics, missing_ok))
            for topic, partition in subscription.assigned:
                if (topic, partition) not in found and not missing_ok:
                    raise MissingError(f"topic {topic} has no partition {partition}")
            return {place: found[place] for place in subscription.assigned if place in found}
        if subscription.pattern:
            matches = re.compile(subscription.pattern).search
            found = self._patiently(lambda: self._metadata(None))
            return {place: partition for place, partition in found.items() if matches(place[0])}
        return self._patiently(lambda: self._metadata(subscription.topics, missing_ok))

    def offsets(self, places: Mapping[Place, Partition], times: Mapping[Place, int]) -> dict[Place, int]:
        """The first offset at or after each time (ms); -1: latest (under read_committed the last stable), -2: earliest.

        -1 where no record is that young.
        """
        known = dict(places)

        def look_again() -> None:
            known.update(self._metadata(tuple(dict.fromkeys(topic for topic, _ in times))))

        return self._patiently(lambda: self._list_offsets(known, times), look_again)

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, Committed]:
        """What a group has committed; partitions without a commit are left out."""
        wanted = list(places)
        request = {
            "group_id": group,
            "topics": [{"name": topic, "partition_indexes": indexes} for topic, indexes in _by_topic(wanted).items()],
            "require_stable": False,
        }
        return self._patiently(lambda: self._offset_fetch(group, request), seconds=GROUP_SECONDS)

    def commit(self, group: str, offsets: Mapping[Place, int], note: str) -> None:
        """Commit for a group without members."""
        request = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": offsets[topic, index],
                            "committed_metadata": note,
                        }
                        for index in indexes
                    ],
                }
                for topic, indexes in _by_topic(offsets).items()
            ],
        }
        self._patiently(lambda: self._offset_commit(group, request), seconds=GROUP_SECONDS)

    # one attempt each

    def _metadata(self, topics: tuple[str, ...] | None, missing_ok: bool = False) -> dict[Place, Partition]:
        request = {
            "topics": None if topics is None else [{"topic_id": None, "name": name} for name in topics],
            "allow_auto_topic_creation": False,
        }
        answer = self._call(self._any_broker(), METADATA, 12, request)
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        self._brokers = tuple(brokers.values())
        found: dict[Place, Partition] = {}
        for topic in answer.topics:
            if topics is None and topic.is_internal:
                continue
            if topic.error_code in _MISSING:
                if missing_ok:
                    continue
                raise MissingError(f"topic {topic.name} does not exist")
            raise_for(topic.error_code, f"describe topic {topic.name}")
            for part in topic.partitions:
                leader = brokers.get(part.leader_id)
                if leader is None:
                    raise PassingError(f"partition {topic.name}-{part.partition_index} has no leader")
                found[topic.name, part.partition_index] = Partition(leader, topic.topic_id)
        return dict(sorted(found.items()))

    def _list_offsets(self, places: Mapping[Place, Partition], times: Mapping[Place, int]) -> dict[Place, int]:
        by_leader: dict[Address, list[Place]] = {}
        for place in times:
            by_leader.setdefault(places[place].leader, []).append(place)
        found: dict[Place, int] = {}
        for leader, group in by_leader.items():
            request = {
                "replica_id": -1,
                "isolation_level": int(self._options.read_committed),
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": index, "timestamp": times[topic, index]} for index in indexes
                        ],
                    }
                    for topic, indexes in _by_topic(group).items()
                ],
            }
            answer = self._call([leader], LIST_OFFSETS, 7, request)
            for topic in answer.topics:
                for part in topic.partitions:
                    raise_for(part.error_code, f"look up offsets of {topic.name}-{part.partition_index}")
                    found[topic.name, part.partition_index] = part.offset
        if len(found) != len(times):
            raise ProtocolError("the broker left out partitions when asked for offsets")
        return found

    def _offset_fetch(self, group: str, request: Mapping[str, Any]) -> dict[Place, Committed]:
        answer = self._ask_coordinator(group, OFFSET_FETCH, 7, request)
        self._raise_for_group(group, answer.error_code, f"read offsets of group {group}")
        found = {}
        for topic in answer.topics:
            for part in topic.partitions:
                self._raise_for_group(group, part.error_code, f"read offsets of group {group}")
                if part.committed_offset >= 0:
                    found[topic.name, part.partition_index] = Committed(part.committed_offset, part.metadata or "")
        return found

    def _offset_commit(self, group: str, request: Mapping[str, Any]) -> None:
        answer = self._ask_coordinator(group, OFFSET_COMMIT, 8, request)
        for topic in answer.topics:
            for part in topic.partitions:
                self._raise_for_group(group, part.error_code, f"commit offsets to group {group}")

    def _ask_coordinator(self, group: str, api_key: int, newest: int, request: Mapping[str, Any]) -> Any:
        address = self._coordinators.get(group)
        if address is None:
            found = self._call(self._any_broker(), FIND_COORDINATOR, 3, {"key": group, "key_type": 0})
            raise_for(found.error_code, f"find the coordinator of group {group}")
            address = self._coordinators[group] = (found.host, found.port)
        try:
            return self._call([address], api_key, newest, request)
        except UnreachableError:
            self._coordinators.pop(group, None)
            raise

    def _raise_for_group(self, group: str, code: ErrorCode, doing: str) -> None:
        if code in _PASSING:
            self._coordinators.pop(group, None)
        raise_for(code, doing)

    # how to ask

    def _any_broker(self) -> list[Address]:
        return list(dict.fromkeys((*self._brokers, *self._bootstrap)))

    def _call(self, among: list[Address], api_key: int, newest: int, request: Mapping[str, Any]) -> Any:
        """Ask the first of several brokers that can be reached."""
        faults = []
        for address in among:
            try:
                with borrow(address, self._options.client_id, self._options.request_timeout_ms / 1000) as link:
                    return link.call(api_key, link.version(api_key, newest), request)
            except UnreachableError as error:
                discard(address, self._options.client_id)
                faults.append(str(error))
        raise UnreachableError("; ".join(faults), "UNREACHABLE")

    def _patiently(
        self, ask: Callable[[], T], between: Callable[[], None] | None = None, *, seconds: float = RECOVERY_SECONDS
    ) -> T:
        deadline = time.monotonic() + seconds
        attempt = 0
        while True:
            try:
                if attempt and between is not None:
                    between()
                return ask()
            except (PassingError, UnreachableError):
                attempt += 1
                known = bool(self._brokers)
                if (not known and attempt > self._options.retries) or time.monotonic() > deadline:
                    raise
                time.sleep(max(self._options.retry_interval_ms / 1000, _PAUSE_SECONDS if known else 0.0))


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found
