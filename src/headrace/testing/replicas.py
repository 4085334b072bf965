"""Nodes that hold replicas of partitions, without sockets, disks or controllers: for tests of replication.

Each `ReplicaNode` is what a broker has for its partitions: logs, flusher, fetchers, in-sync sets. `ReplicaCluster` is
the rest of the world: a controller's decisions (`decide`), and links that carry real Fetch frames, with `cut`s.
Everything runs in virtual time: wait with `until`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec

from headrace.apis import fetch
from headrace.apis.api import Context, Encoded
from headrace.broker import decisions
from headrace.broker.commands import (
    AlterInSync,
    Answer,
    Command,
    Done,
    InSyncAltered,
    OfflineReplicas,
    ShortLeader,
)
from headrace.broker.flusher import Flusher
from headrace.broker.image import BrokerRecord, Image, MetadataRecord, PartitionRecord, TopicRecord, apply
from headrace.broker.in_sync import InSyncSets
from headrace.broker.known_logs import KnownLogs
from headrace.broker.levels import LEVEL
from headrace.broker.log_faults import OfflineReports
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.record_validation import RecordValidation
from headrace.broker.refusals import Refusals
from headrace.broker.replication import Replication
from headrace.broker.service import Service
from headrace.broker.turns import Turns
from headrace.core.counters import Counters
from headrace.core.errors import ApiError, ErrorCode, LinkError
from headrace.gateways.kafka.hello import VERSIONS
from headrace.storage.manifest import Manifest, opened
from headrace.storage.memory import MemoryFiles
from headrace.storage.topic_config import TopicConfig
from headrace.testing.metadata import InlineWorkers
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.loop import SimLoop
from headrace.wire import batch, messages
from headrace.wire.headers import parse_request_header, response_header

LAG_MS = 2000
TOPIC = "orders"
TOPIC_ID = UUID(int=7)


class FixedConfigs:
    """Every topic has the same configuration."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config

    def topic_config(self, configs: object, image: object) -> TopicConfig:
        return self.config


class FixedPolicy:
    """What the same configuration means to the controller."""

    def __init__(self, config: TopicConfig) -> None:
        self._config = config

    def unclean(self, topic: object, image: object) -> bool:
        return self._config.unclean_leader_election

    def synced(self, topic: object, image: object) -> bool:
        return self._config.flush == "ack" and self._config.storage == "disk"

    def volatile(self, topic: object, image: object) -> bool:
        return self._config.storage == "memory"

    def min_insync(self, topic: object, image: object) -> int:
        return self._config.min_insync_replicas


class ReplicaNode:
    """One start of one node."""

    def __init__(
        self,
        cluster: ReplicaCluster,
        node_id: int,
        files: Any,
        epoch: int,
        high_watermarks: Mapping[tuple[UUID, int], int] = MappingProxyType({}),
    ) -> None:
        """`high_watermarks`: that it has written down, by topic id and index."""
        self.cluster = cluster
        self.node_id = node_id
        self.epoch = epoch
        self.files = files
        self.image = cluster.image
        self.alive = True
        clock, workers, counters = SimClock(cluster.loop.time), InlineWorkers(), Counters()
        known = KnownLogs(opened(Manifest.read(files), epoch, files, adopts=False), workers)
        self.partitions = Partitions(
            files,
            MemoryFiles(),
            FixedConfigs(cluster.config),  # type: ignore[arg-type]
            node_id,
            known,
            producer_expiry_ms=10**9,
            clock=clock,
            workers=workers,
            counters=counters,
            touched=self._touched,
        )
        self.flusher = Flusher(workers, clock, counters, self.partitions.fail_disk)
        self.replication = Replication(
            node_id, cluster.links(self), self.flusher, clock=clock, known=known, quorum=cluster
        )
        self.in_sync = InSyncSets(
            node_id, self.partitions, cluster, image=lambda: self.image, clock=clock, lag_ms=LAG_MS
        )
        self.partitions.watchers.append(self.replication.changed)
        self.service: Any = SimpleNamespace(
            turns=Turns(lambda: 0.0),
            image=self.image,
            partitions=self.partitions,
            workers=workers,
            counters=counters,
            clock=clock,
            refusals=Refusals(),
            admission=SimpleNamespace(queues={}),  # nothing waits for a verdict
            validation=RecordValidation(),
            next_turn=lambda: 0,
            count_error=lambda api, code: None,
            topic_name=lambda topic_id: self.image.topic_names.get(topic_id),
            check_epoch=lambda partition, epoch: Service.check_epoch(self.service, partition, epoch),
        )
        self.partitions.known_high_watermark = (  # type: ignore[method-assign]
            lambda topic, index: high_watermarks.get((topic.topic_id, index), 0)
        )
        self.partitions.load(self.image, is_current=False)

    async def register(self) -> None:
        await self.partitions.registered()
        self.partitions.report_to(OfflineReports(self.node_id, self.epoch, self.cluster))
        self.replication.start(self.epoch, self.partitions)
        self.in_sync.start(self.epoch)

    def _touched(self, partition: Partition) -> None:
        if partition.durable_ack:
            self.flusher.request(partition)

    def apply(self, image: Image) -> None:
        old, self.image = self.image, image
        self.service.image = image
        self.partitions.changed(old, image)

    def known_high_watermarks(self) -> dict[tuple[UUID, int], int]:
        return {(each.topic_id, each.index): each.high_watermark for each in self.partitions}

    def get(self, index: int = 0) -> Partition:
        found = self.partitions.replica(self.cluster.topic, index)
        assert found is not None
        return found

    def append(self, *values: bytes, index: int = 0) -> int:
        """Append one batch as the leader; returns the offset after it. Raises ApiError."""
        partition = self.partitions.get(self.cluster.topic, index)
        data = bytearray(batch.build([(None, value) for value in values], timestamp_ms=1000))
        return partition.append(data, list(batch.headers(data))).last_offset + 1

    async def produce(self, *values: bytes, index: int = 0) -> int:
        """The same, with acks=all."""
        end = self.append(*values, index=index)
        await self.get(index).committed(end)
        return end

    def values(self, index: int = 0) -> list[tuple[int, bytes | None]]:
        """(offset, value) of everything in the log."""
        log = self.get(index).log
        offset, found = log.start_offset, []
        while (span := log.locate(offset, 1_000_000, log.end_offset)) is not None:
            data = span.read()
            for header in batch.headers(data):
                assert batch.crc_matches(data, header)
                found += [(record.offset, record.value) for record in batch.records(data, header)]
            offset = span.next_offset
        return [record for record in found if record[0] >= log.start_offset]

    async def stop(self) -> None:
        self.alive = False
        await self.in_sync.stop()
        await self.replication.stop()
        await self.flusher.drain()
        self.partitions.stop_looking()


class NodeLinks:
    """What one node reaches the others by."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node

    def version(self, node_id: int) -> int:
        return VERSIONS[1]

    async def call(self, node_id: int, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        cluster, me = self._node.cluster, self._node
        await asyncio.sleep(cluster.delay_s)
        target = cluster.nodes.get(node_id)
        if target is None or not target.alive or not me.alive or cluster.is_cut(me.node_id, node_id):
            await asyncio.sleep(0.01)
            raise LinkError(f"node {node_id} is silent")
        header = parse_request_header(frame)
        assert header.api_key == fetch.API.key
        cluster.fetches += 1
        request = messages.decode_request(header.api_key, header.api_version, frame, header.body_offset)
        context = Context(target.service, header.api_version, "", "", peer=me.node_id)
        answer = fetch.handle(context, request)
        if not isinstance(answer, Encoded):
            answer = await answer
        await asyncio.sleep(cluster.delay_s)
        if cluster.is_cut(me.node_id, node_id) or not target.alive:
            raise LinkError(f"node {node_id} is silent")
        parts = response_header(header.api_key, header.api_version, header.correlation_id), *answer.parts
        return b"".join(bytes(part) for part in parts)


class ReplicaCluster:
    """See the module."""

    def __init__(self, *node_ids: int, topic: str = TOPIC, **config: Any) -> None:
        self.topic = topic
        self.loop = SimLoop()  # type: ignore[abstract]
        self.config = replace(TopicConfig(), **{"flush": "os", "storage": "disk", **config})
        self.delay_s = 0.001
        self.fetches = 0
        self.short_leaders: list[ShortLeader] = []  # that were reported
        self.silent = False  # the controller does not answer
        self.is_old = False  # the controller is of a release that does not know `OfflineReplicas`
        self.loses_answers: Callable[[], bool] = lambda: False
        self.new_files: Callable[[], Any] = MemoryFiles
        self.policy: decisions.Policy = FixedPolicy(self.config)
        self.image = Image()
        self.nodes: dict[int, ReplicaNode] = {}
        self._cuts: set[frozenset[int]] = set()
        self._lost: list[ReplicaNode] = []
        self.decide(*(BrokerRecord(node, f"host{node}", 9092, epoch=1, level=LEVEL) for node in node_ids))

    def run(self, scenario: Coroutine[Any, Any, Any]) -> None:
        async def whole() -> None:
            await scenario
            for node in [*self.nodes.values(), *self._lost]:
                if node.alive or node in self._lost:
                    await node.stop()

        self.loop.run_until_complete(whole())

    def links(self, node: ReplicaNode) -> NodeLinks:
        return NodeLinks(node)

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.image.brokers:
            record = self.image.brokers[node_id]
            before = self.nodes.get(node_id)
            files = self.new_files() if before is None else before.files
            known = {} if before is None else before.known_high_watermarks()
            node = self.nodes[node_id] = ReplicaNode(self, node_id, files, record.epoch, known)
            await node.register()

    # ------------------------------------------------------------------ the controller

    def decide(self, *records: MetadataRecord) -> None:
        """Commit records; all living nodes see it at once, but for those that are cut off from the controller."""
        self.image = apply(self.image, records)
        self._tell()

    def _tell(self) -> None:
        for node in self.nodes.values():
            if node.alive and node.image is not self.image and not self.is_cut(0, node.node_id):
                node.apply(self.image)

    def make_topic(self, *replicas: tuple[int, ...]) -> None:
        """One partition for each set of replicas, led by the first, all in sync."""
        records: list[MetadataRecord] = [TopicRecord(self.topic, TOPIC_ID)]
        records += [PartitionRecord(self.topic, n, nodes, nodes, nodes[0], 0) for n, nodes in enumerate(replicas)]
        self.decide(*records)

    def elect(self, leader: int, *, isr: tuple[int, ...] | None = None, index: int = 0) -> None:
        record = self.record(index)
        self.decide(
            msgspec.structs.replace(
                record,
                isr=record.isr if isr is None else isr,
                leader=leader,
                leader_epoch=record.leader_epoch + 1,
                partition_epoch=record.partition_epoch + 1,
            )
        )

    def record(self, index: int = 0) -> PartitionRecord:
        return self.image.topics[self.topic].partitions[index]

    leader = None
    leads = False

    async def ask(self, command: Command, *, timeout_s: float = 10.0) -> Answer:
        """Of a Quorum."""
        await asyncio.sleep(self.delay_s)
        assert isinstance(command, AlterInSync | OfflineReplicas | ShortLeader)
        if self.silent or self.is_cut(command.node_id, 0):
            raise ApiError(ErrorCode.request_timed_out)
        if isinstance(command, OfflineReplicas):
            if self.is_old:
                raise ApiError(ErrorCode.unsupported_version)
            self.decide(*decisions.offline_replicas(self.image, command, self.policy))
            return Done()
        if isinstance(command, ShortLeader):
            self.short_leaders.append(command)
            self.decide(*decisions.short_leader(self.image, command, self.policy))
            return Done()
        records, errors = decisions.alter_in_sync(self.image, command, self.policy)
        lost = self.loses_answers()
        if lost:
            self.cut(0, command.node_id)
        self.decide(*records)
        if lost:
            raise ApiError(ErrorCode.request_timed_out)
        return InSyncAltered(errors)

    # ------------------------------------------------------------------ faults

    def cut(self, one: int, other: int) -> None:
        """Node 0 is the controller."""
        self._cuts.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cuts.clear()
        self._tell()

    def is_cut(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self._cuts

    def kill(self, node_id: int) -> None:
        """It stops where it stands; what it has written stays."""
        node = self.nodes[node_id]
        node.alive = False
        self._lost.append(node)

    async def lose_power(self, node_id: int, dice: Random) -> None:
        """It stops, and what was not synced may be gone. Its files must be FaultyFiles."""
        node = self.nodes[node_id]
        node.alive = False
        await node.in_sync.stop()
        await node.replication.stop()
        await node.flusher.drain()
        node.files = node.files.power_cut(dice)

    async def restart(self, node_id: int) -> None:
        """Start a killed node again, on what it had written."""
        record = self.image.brokers[node_id]
        await self._lost[-1].stop()
        self.decide(msgspec.structs.replace(record, epoch=record.epoch + 1))
        await self.start(node_id)

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Let time pass until `condition` holds."""
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "it never came true"
            await asyncio.sleep(0.001)
