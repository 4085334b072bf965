"""The composition root: settings and ports in, a running broker out. The order of start and stop is here alone.

Start: directory -> metadata -> partitions -> groups -> transactions -> port -> ready -> HTTP.
Stop, the other way round: no new clients -> nothing left to sync -> connections -> logs -> directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.admission import Admission
from headrace.broker.cataloguing import Cataloguing
from headrace.broker.cleaning import Cleaning
from headrace.broker.configs import Configs
from headrace.broker.controller import Controller
from headrace.broker.flusher import Flusher
from headrace.broker.groups import GroupCoordinator
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.image import BrokerRecord
from headrace.broker.internal_topics import OFFSETS_TOPIC, InternalTopic
from headrace.broker.partitions import Partitions
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.raft_storage import RaftStorage
from headrace.broker.service import Service
from headrace.broker.topics import Topics
from headrace.broker.transactions import TRANSACTION_TOPIC, LocalMarkers, TransactionCoordinator
from headrace.core.counters import Counters
from headrace.core.errors import ConfigError, StorageError
from headrace.gateways.kafka.hello import Membership
from headrace.gateways.kafka.server import KafkaServer
from headrace.runtime import logs
from headrace.runtime import loop as loops
from headrace.runtime.clock import SystemClock
from headrace.runtime.dice import SystemDice
from headrace.runtime.disk import DiskFiles
from headrace.runtime.network import SocketNetwork
from headrace.runtime.workers import ThreadWorkers
from headrace.storage.catalog import PATH as CATALOG_PATH
from headrace.storage.catalog import Catalog
from headrace.storage.directory import Directory, random_id
from headrace.storage.memory import MemoryFiles

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Dice, Files, Network, Workers
    from headrace.gateways.http.server import HttpServer
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

WILDCARDS = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a broker can be reached."""

    kafka_host: str
    kafka_port: int
    http_host: str | None = None
    http_port: int | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.kafka_host}:{self.kafka_port}"

    @property
    def http_url(self) -> str | None:
        return None if self.http_port is None else f"http://{self.http_host}:{self.http_port}"


class Node:
    """One broker in one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        workers: Workers | None = None,
        network: Network | None = None,
        dice: Dice | None = None,
    ) -> None:
        """The ports are the machine's own unless others are given."""
        self._settings = settings
        self._undo = contextlib.AsyncExitStack()
        self._files = files
        self._clock = clock or SystemClock()
        self._workers = workers or self._own_workers()
        self._network = network or SocketNetwork(settings.kafka.host)
        self._dice = dice or SystemDice()
        self._counters = Counters()
        self._service: Service | None = None
        self.addresses = Addresses("", 0)

    def _own_workers(self) -> ThreadWorkers:
        workers = ThreadWorkers()
        self._undo.callback(workers.close)
        return workers

    def _new_id(self) -> UUID:
        return UUID(bytes=self._dice.randbytes(16), version=4)

    @property
    def service(self) -> Service:
        assert self._service is not None, "the node has not started"
        return self._service

    async def start(self) -> Addresses:
        """Serve. Raises ConfigError or StorageError; then nothing is left running."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self.addresses

    async def stop(self) -> None:
        """Stop, in the opposite order of the start. Safe to call at any time, and twice."""
        await self._undo.aclose()

    async def _start(self) -> None:
        settings, undo = self._settings, self._undo
        files, cluster_id = self._claim()
        controller = self._open_metadata(files)
        node_id = settings.broker.node_id

        housekeeping: Housekeeping
        configs = Configs(controller, settings)
        partitions = Partitions(
            files,
            MemoryFiles(),
            configs,
            node_id,
            producer_expiry_ms=settings.storage.producer_expiry_ms,
            clock=self._clock,
            workers=self._workers,
            counters=self._counters,
            touched=lambda partition: housekeeping.touched(partition),
        )
        flusher = Flusher(self._workers, self._clock, self._counters, partitions.fail_disk)
        housekeeping = Housekeeping(partitions, flusher, settings.storage, self._clock)
        undo.push_async_callback(self._run, partitions.close)
        partitions.load(controller.image)
        controller.subscribe(partitions.changed, settled=partitions.settled)

        topics = Topics(controller, configs, settings.broker, self._new_id)
        offsets = InternalTopic(
            OFFSETS_TOPIC,
            settings.group.offsets_partitions,
            controller=controller,
            topics=topics,
            partitions=partitions,
        )
        groups = GroupCoordinator(
            settings.group, offsets, clock=self._clock, workers=self._workers, new_id=lambda: str(self._new_id())
        )
        controller.subscribe(groups.changed)
        producer_ids = ProducerIds(controller)
        transactions = self._transactions(controller, topics, partitions, offsets, producer_ids)
        service = self._service = Service(
            settings=settings,
            cluster_id=cluster_id,
            data_dir=settings.storage.data_dir if settings.storage.kind == "disk" else "memory",
            node=BrokerRecord(node_id, "", 0),
            clock=self._clock,
            workers=self._workers,
            counters=self._counters,
            controller=controller,
            topics=topics,
            configs=configs,
            partitions=partitions,
            flusher=flusher,
            groups=groups,
            transactions=transactions,
            admission=Admission(transactions),
            producer_ids=producer_ids,
        )
        undo.push_async_callback(flusher.drain)
        await self._open_doors(service, housekeeping, flusher, self._open_catalog(files, partitions))

    def _transactions(
        self,
        controller: Controller,
        topics: Topics,
        partitions: Partitions,
        offsets: InternalTopic,
        producer_ids: ProducerIds,
    ) -> TransactionCoordinator:
        settings = self._settings.transactions
        return TransactionCoordinator(
            settings,
            InternalTopic(
                TRANSACTION_TOPIC, settings.partitions, controller=controller, topics=topics, partitions=partitions
            ),
            LocalMarkers(partitions.get),
            offsets_topic=offsets,
            next_producer_id=producer_ids.next_id,
            clock=self._clock,
            workers=self._workers,
        )

    def _claim(self) -> tuple[Files, str]:
        storage = self._settings.storage
        files = self._files
        if files is None:
            files = MemoryFiles() if storage.kind == "memory" else DiskFiles(storage.data_dir, read=storage.read)
        try:
            directory = Directory.claim(
                files, node_id=self._settings.broker.node_id, new_id=lambda: random_id(self._dice.randbytes)
            )
        except (ConfigError, StorageError) as error:
            raise type(error)(f"{storage.data_dir}: {error}") from error
        self._undo.callback(directory.release)
        return files, directory.cluster_id

    def _open_metadata(self, files: Files) -> Controller:
        storage = RaftStorage.open(files)
        self._undo.callback(storage.close)
        controller = Controller(storage, workers=self._workers, dice=self._dice, node_id=self._settings.broker.node_id)
        self._undo.push_async_callback(controller.close)
        controller.load()
        return controller

    def _open_catalog(self, files: Files, partitions: Partitions) -> Cataloguing | None:
        if not isinstance(files, DiskFiles):
            return None
        catalog = Catalog(files, f"{files.root}/{CATALOG_PATH}")
        self._undo.callback(catalog.close)
        cataloguing = Cataloguing(catalog, partitions, self._workers)
        cataloguing.start()
        return cataloguing

    async def _open_doors(
        self, service: Service, housekeeping: Housekeeping, flusher: Flusher, cataloguing: Cataloguing | None
    ) -> None:
        kafka = KafkaServer(
            self._settings.kafka,
            service,
            self._network,
            Membership(self._settings.broker.node_id, service.cluster_id),
            self._dice,
        )
        self._undo.push_async_callback(kafka.stop)
        port = await kafka.bind()
        service.node = self._node_record(port)
        if service.image.brokers.get(service.node.node_id) != service.node:
            await service.controller.propose([service.node])
        await service.groups.start(known_topics=service.image.topics)
        self._undo.push_async_callback(service.groups.stop)
        await service.transactions.start()
        self._undo.push_async_callback(service.transactions.stop)
        housekeeping.start(cataloguing)
        self._undo.push_async_callback(housekeeping.stop)
        cleaning = Cleaning(
            service.partitions,
            flusher,
            self._settings.storage,
            clock=self._clock,
            workers=self._workers,
            counters=self._counters,
            on_failure=service.partitions.fail_disk,
        )
        cleaning.start()
        self._undo.push_async_callback(cleaning.stop)
        self._undo.push_async_callback(flusher.drain)
        await kafka.start()
        self._undo.callback(kafka.refuse_new)
        probe = asyncio.create_task(loops.probe(self._counters.loop_delay_seconds, each=logs.sweep), name="loop-probe")
        self._undo.callback(probe.cancel)
        self.addresses = Addresses(self._settings.kafka.host, port)
        if self._settings.http.enabled:
            http = self._http_server(service)
            self._undo.push_async_callback(http.stop)
            http_port = await http.start()
            self.addresses = Addresses(self._settings.kafka.host, port, self._settings.http.host, http_port)
        service.ready = True
        self._undo.callback(setattr, service, "ready", False)

    def _node_record(self, port: int) -> BrokerRecord:
        kafka, broker = self._settings.kafka, self._settings.broker
        host = kafka.advertised_host or ("localhost" if kafka.host in WILDCARDS else kafka.host)
        return BrokerRecord(broker.node_id, host, kafka.advertised_port or port, broker.rack)

    def _http_server(self, service: Service) -> HttpServer:
        from headrace import __version__
        from headrace.gateways.http.server import HttpServer

        return HttpServer(
            self._settings.http,
            service,
            version=__version__,
            addresses=lambda: {"kafka": self.addresses.bootstrap_servers, "http": self.addresses.http_url or ""},
        )

    async def _run(self, work: Callable[[], None]) -> None:
        await self._workers.run(work)
