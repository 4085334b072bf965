"""What the doors see of a broker: the parts, and the few questions that every API asks.

Rules:
- It holds the parts and makes none of them; `app` does. It has no life of its own.
- Everything here is called on the loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.broker.departures import Departures
from headrace.broker.encoded_topics import EncodedTopics
from headrace.broker.record_validation import RecordValidation
from headrace.broker.refusals import Refusals
from headrace.broker.turns import Turns
from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.admission import Admission
    from headrace.broker.configs import Chosen, Configs
    from headrace.broker.controller import Controller
    from headrace.broker.council import Council
    from headrace.broker.flusher import Flusher
    from headrace.broker.groups import GroupCoordinator
    from headrace.broker.image import BrokerRecord, Image
    from headrace.broker.partition import Partition
    from headrace.broker.partitions import Partitions
    from headrace.broker.producer_ids import ProducerIds
    from headrace.broker.topics import Topics
    from headrace.broker.transactions import TransactionCoordinator
    from headrace.core.counters import Counters
    from headrace.core.ports import Clock, Workers


@dataclass(slots=True)
class Service:
    """See the module."""

    settings: Chosen
    cluster_id: str
    data_dir: str
    node: BrokerRecord
    clock: Clock
    workers: Workers
    counters: Counters
    controller: Controller
    topics: Topics
    configs: Configs
    partitions: Partitions
    flusher: Flusher
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    admission: Admission
    producer_ids: ProducerIds
    council: Council
    departures: Departures = field(default_factory=Departures)
    refusals: Refusals = field(default_factory=Refusals)
    encoded_topics: EncodedTopics = field(default_factory=EncodedTopics)
    validation: RecordValidation = field(default_factory=RecordValidation)
    serving: bool = False  # clients; other nodes are always answered
    ready: bool = False
    turns: Turns = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        self.turns = Turns(self.clock.monotonic)

    @property
    def image(self) -> Image:
        return self.controller.image

    @property
    def controller_id(self) -> int:
        """The node that decides; -1 while none is known."""
        leader = self.controller.quorum.leader
        node = None if leader is None else self.image.brokers.get(leader)
        return -1 if node is None or node.fenced else node.node_id

    @property
    def faults(self) -> list[str]:
        """What is wrong with this broker, for people."""
        found = self.partitions.faults
        if self.controller.fault is not None:
            found.append(f"metadata: {self.controller.fault}")
        return found

    def topic_name(self, topic_id: UUID | None) -> str | None:
        return None if topic_id is None else self.controller.image.topic_names.get(topic_id)

    def next_turn(self) -> int:
        """A number that moves on, for fairness between partitions."""
        self._turn += 1
        return self._turn

    def check_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Refuse a client whose idea of the leader is older or newer than ours."""
        if leader_epoch < 0 or leader_epoch == partition.leader_epoch:
            return
        older = leader_epoch < partition.leader_epoch
        raise ApiError(ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch)

    def count_error(self, api: str, code: int) -> None:
        errors = self.counters.errors
        errors[api, code] = errors.get((api, code), 0) + 1


def few_in_sync(partition: Partition) -> bool:
    """Whether writes must not be acknowledged. A topic cannot want more replicas in sync than it has."""
    record = partition.record
    return record is not None and record.has_few_in_sync(partition.log.config.min_insync_replicas)
