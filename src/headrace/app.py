"""The composition root: settings and ports in, a running broker out. The order of start and stop is here alone.

Start: port -> (join) -> directory -> metadata -> (other nodes) -> registration -> partitions -> groups -> transactions
-> clients -> HTTP -> ready. In parentheses: only in a cluster of several. The port answers other nodes as soon as
metadata is there, and clients when everything is.
Stop, the other way round: leave -> no new clients -> nothing left to sync -> connections -> logs -> metadata ->
directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.addresses import AddressBook
from headrace.broker.admission import Admission
from headrace.broker.attendance import Attendance, caught_up
from headrace.broker.cataloguing import Cataloguing
from headrace.broker.cleaning import Cleaning
from headrace.broker.cluster_settings import parse_addresses
from headrace.broker.commands import Join, Register
from headrace.broker.configs import Configs
from headrace.broker.controller import Controller
from headrace.broker.council import Council
from headrace.broker.directory_state import DirectoryState
from headrace.broker.flusher import Flusher
from headrace.broker.gossip import Gossip
from headrace.broker.groups import GroupCoordinator
from headrace.broker.housekeeping import Housekeeping
from headrace.broker.image import BrokerRecord
from headrace.broker.in_sync import InSyncSets
from headrace.broker.internal_topics import OFFSETS_TOPIC, InternalTopic
from headrace.broker.joining import JOINED_PATH, join, remember, remembered
from headrace.broker.log_faults import OfflineReports
from headrace.broker.losses import report_losses
from headrace.broker.markers import ClusterMarkers
from headrace.broker.nodes import NodeWatch
from headrace.broker.partitions import Partitions
from headrace.broker.post import Post
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.raft_storage import RaftStorage
from headrace.broker.replication import Replication
from headrace.broker.service import Service
from headrace.broker.tally import Tally
from headrace.broker.topics import Topics
from headrace.broker.transactions import TRANSACTION_TOPIC, TransactionCoordinator
from headrace.broker.verification import Verification
from headrace.core.counters import Counters
from headrace.core.errors import ConfigError, StorageError
from headrace.gateways.addresses import Addresses
from headrace.gateways.kafka.hello import Membership
from headrace.gateways.kafka.links import PeerLinks
from headrace.gateways.kafka.server import KafkaServer
from headrace.raft.options import RaftOptions
from headrace.runtime import logs
from headrace.runtime import loop as loops
from headrace.runtime.allocator import release_freed_memory
from headrace.runtime.boot import system_boot_id
from headrace.runtime.clock import SystemClock
from headrace.runtime.dice import SystemDice
from headrace.runtime.disk import DiskFiles
from headrace.runtime.network import SocketNetwork
from headrace.runtime.workers import ThreadWorkers
from headrace.storage.catalog import PATH as CATALOG_PATH
from headrace.storage.catalog import Catalog
from headrace.storage.directory import PATH as META_PATH
from headrace.storage.directory import Directory, random_id, trust_system
from headrace.storage.memory import MemoryFiles

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Dice, Network, TrackedFiles, Workers
    from headrace.gateways.http.server import HttpServer
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

WILDCARDS = frozenset({"", "0.0.0.0", "::"})
ELECTION_TICKS = 10


class Node:
    """One broker in one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        files: TrackedFiles | None = None,
        clock: Clock | None = None,
        workers: Workers | None = None,
        network: Network | None = None,
        dice: Dice | None = None,
        boot_id: str | None = None,
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
        self._membership = Membership(settings.broker.node_id, "", settings.cluster.secret)
        self._address_book = AddressBook()
        self._links: PeerLinks
        self._nodes: NodeWatch
        self._boot_id = system_boot_id() if boot_id is None else boot_id
        self._data: DirectoryState
        self._port = 0
        self._may_be_clean = False
        self._closing: asyncio.Task[None] | None = None
        self.addresses = Addresses("", 0)
        self.failed = asyncio.Event()  # it serves nobody any more, and only waits to be stopped

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

    def _lose_metadata(self, kafka: KafkaServer, error: Exception) -> None:
        """What this node knows stands still from here on, and its disk is not to be trusted: it serves nobody."""
        service = self.service
        service.ready = service.serving = self._may_be_clean = False
        service.partitions.fail_disk(error if isinstance(error, StorageError) else StorageError(str(error)))
        self._closing = asyncio.get_running_loop().create_task(kafka.stop(), name="doors")
        logger.critical("this node has lost its metadata log and serves nobody", extra={"reason": str(error)})
        self.failed.set()

    async def _start(self) -> None:
        settings, undo = self._settings, self._undo
        kafka, record = await self._take_port()
        files = self._open_files()
        directory = await self._claim(files, record)
        controller = self._open_metadata(files)
        service, housekeeping = self._compose(files, directory, controller, record)
        self._data.known.serve(lambda: controller.durable_place, on_failure=service.partitions.fail_disk)
        undo.push_async_callback(kafka.stop)
        kafka.use(service)
        controller.on_fault = partial(self._lose_metadata, kafka)
        attendance = Attendance(service.council, controller, settings.cluster)
        await self._take_part(service, kafka, Join(record.node_id, record.host, record.port, directory.directory_id))
        await attendance.register(
            Register(
                *(record.node_id, record.host, record.port, record.rack),
                directory_id=directory.directory_id,
                clean=self._data.was_clean,
                start=self._data.start,
            )
        )
        await self._run(lambda: trust_system(files, self._boot_id))
        node = service.image.brokers.get(record.node_id)
        if node is None:
            raise ConfigError(f"node {record.node_id} was removed from the cluster while it started")
        service.node, partitions = node, service.partitions
        partitions.load(service.image)
        controller.subscribe(partitions.changed, settled=partitions.settled)
        controller.subscribe(service.groups.changed)
        controller.subscribe(service.departures.changed)
        controller.subscribe(Tally(record.node_id, self._counters.cluster).changed)
        undo.push_async_callback(service.flusher.drain)
        self._copy(service)
        await report_losses(partitions, service.council, controller, node)
        self._gossip(service)
        await self._open_doors(service, kafka, housekeeping, self._open_catalog(files, partitions))
        attendance.is_fit = partitions.examined
        attendance.start()
        undo.push_async_callback(attendance.leave)
        await attendance.admitted()
        service.ready = True
        undo.callback(setattr, service, "ready", False)
        self._may_be_clean = True

    def _copy(self, service: Service) -> None:
        """Follow other leaders, and see who follows us."""
        cluster, partitions, node = self._settings.cluster, service.partitions, service.node
        replication = Replication(
            node.node_id,
            self._links,
            service.flusher,
            clock=self._clock,
            known=self._data.known,
            throttle_bytes_per_s=cluster.replica_throttle_bytes_per_second,
            counters=self._counters.cluster,
            quorum=service.council,
        )
        in_sync = InSyncSets(
            node.node_id,
            partitions,
            service.council,
            image=lambda: service.image,
            clock=self._clock,
            lag_ms=cluster.replica_lag_ms,
        )
        partitions.watchers += [
            replication.changed,
            service.groups.role_changed,
            service.transactions.role_changed,
        ]
        partitions.report_to(OfflineReports(node.node_id, node.epoch, service.council))
        self._undo.push_async_callback(replication.stop)
        self._undo.push_async_callback(in_sync.stop)
        replication.start(node.epoch, partitions)
        in_sync.start(node.epoch)

    def _gossip(self, service: Service) -> None:
        """Hear of the other nodes, and let them hear of us."""
        gossip = Gossip(
            self._network,
            self._dice,
            self._clock,
            self._settings.cluster,
            cluster_id=service.cluster_id,
            bind=(self._settings.kafka.host, self._port),
            on_death=self._nodes.suspected,
            on_address=self._address_book.told,
        )
        service.council.skew_of, service.council.belief_of = gossip.skew_of, gossip.belief_of
        service.controller.subscribe(gossip.changed)
        self._undo.push_async_callback(gossip.stop)
        gossip.start(service.node.node_id, service.image)

    async def _take_port(self) -> tuple[KafkaServer, BrokerRecord]:
        """The port comes first: a node that joins a cluster says where it is."""
        settings = self._settings
        world = (self._network, self._membership, self._dice, release_freed_memory)
        kafka = KafkaServer(settings.kafka, None, *world)
        self._undo.push_async_callback(kafka.stop)
        self._links = PeerLinks(self._network, self._membership, self._address_book.get, self._dice)
        self._undo.callback(self._links.close)
        self._port = await kafka.bind()
        return kafka, self._node_record(self._port)

    async def _take_part(self, service: Service, kafka: KafkaServer, us: Join) -> None:
        """Be one of the quorum, and wait until this node knows what the others have decided."""
        controller, undo = service.controller, self._undo
        quorum = controller.quorum
        timeout_s = self._settings.cluster.election_ms / 1000
        post = Post(self._links, quorum.unreachable, timeout_s=timeout_s)
        quorum.send = post.send
        service.departures.on_refusal = (self._nodes.refused, quorum.doubt)
        self._links.on_contact = service.departures.contact
        undo.push_async_callback(post.close)
        controller.start()
        undo.push_async_callback(self._nodes.stop)
        self._nodes.start()
        if quorum.is_alone:
            return
        await kafka.start()  # the others have much to say before clients are served
        announcing = asyncio.create_task(self._announce(us), name="announce")
        undo.callback(announcing.cancel)
        try:
            await caught_up(controller)
        finally:
            announcing.cancel()

    async def _announce(self, us: Join) -> None:
        """A node that came back elsewhere hears nothing from the others until they know where it is."""
        if self._address_book.get(us.node_id) == (us.host, us.port):
            return
        seeds = self._address_book.others(us.node_id) + parse_addresses(self._settings.cluster.join or "")
        try:
            await join(self._links, seeds, us)
        except ConfigError as error:
            logger.critical("this node is not wanted in its cluster", extra={"reason": str(error)})

    def _compose(
        self, files: TrackedFiles, directory: Directory, controller: Controller, record: BrokerRecord
    ) -> tuple[Service, Housekeeping]:
        """Make the parts; none of them works yet."""
        settings = self._settings
        housekeeping: Housekeeping
        configs = Configs(controller, settings)
        nodes = self._nodes = NodeWatch(controller, settings.cluster, configs)
        council = Council(
            *(record.node_id, directory.cluster_id, controller, nodes, configs),
            links=self._links,
            counters=self._counters.cluster,
        )
        partitions = Partitions(
            files,
            MemoryFiles(),
            configs,
            record.node_id,
            self._data.known,
            producer_expiry_ms=settings.storage.producer_expiry_ms,
            clock=self._clock,
            workers=self._workers,
            counters=self._counters,
            touched=lambda partition: housekeeping.touched(partition),
        )
        flusher = Flusher(self._workers, self._clock, self._counters, partitions.fail_disk)
        housekeeping = Housekeeping(partitions, flusher, settings.storage, self._clock)
        self._undo.push_async_callback(partitions.stop)
        topics = Topics(controller, configs, settings.broker, self._new_id, council)
        council.ensure_topic = topics.ensure_topic
        count = settings.group.offsets_partitions
        offsets = InternalTopic(OFFSETS_TOPIC, count, controller=controller, topics=topics, partitions=partitions)
        groups = GroupCoordinator(
            settings.group, offsets, clock=self._clock, workers=self._workers, new_id=lambda: str(self._new_id())
        )
        producer_ids = ProducerIds(council)
        transactions, verification = self._transactions(controller, topics, partitions, offsets, producer_ids)
        service = self._service = Service(
            settings=settings,
            cluster_id=directory.cluster_id,
            data_dir=settings.storage.data_dir if settings.storage.kind == "disk" else "memory",
            node=record,
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
            admission=Admission(verification),
            producer_ids=producer_ids,
            council=council,
        )
        return service, housekeeping

    def _transactions(
        self,
        controller: Controller,
        topics: Topics,
        partitions: Partitions,
        offsets: InternalTopic,
        producer_ids: ProducerIds,
    ) -> tuple[TransactionCoordinator, Verification]:
        settings, node_id = self._settings.transactions, self._settings.broker.node_id
        topic = InternalTopic(
            TRANSACTION_TOPIC, settings.partitions, controller=controller, topics=topics, partitions=partitions
        )
        transactions = TransactionCoordinator(
            settings,
            topic,
            ClusterMarkers(node_id, self._links, partitions.get, lambda: controller.image),
            offsets_topic=offsets,
            next_producer_id=producer_ids.next_id,
            clock=self._clock,
            workers=self._workers,
        )
        verification = Verification(node_id, self._links, transactions, leader_of=topic.leader_of, find=partitions.get)
        return transactions, verification

    def _open_files(self) -> TrackedFiles:
        storage = self._settings.storage
        if self._files is not None:
            return self._files
        return MemoryFiles() if storage.kind == "memory" else DiskFiles(storage.data_dir, read=storage.read)

    async def _claim(self, files: TrackedFiles, record: BrokerRecord) -> Directory:
        """Make the data directory ours; a new one belongs to the cluster that is joined, or begins one."""
        settings = self._settings
        directory_id = random_id(self._dice.randbytes)
        cluster_id = None
        if settings.cluster.join and files.load(META_PATH) is None:
            command = Join(record.node_id, record.host, record.port, directory_id)
            joined = await join(self._links, parse_addresses(settings.cluster.join), command)
            self._address_book.hint(joined.nodes)
            cluster_id = joined.cluster_id
            remember(files, joined)  # a crash from here on must not found another cluster
        ids = iter((directory_id,) if cluster_id else (random_id(self._dice.randbytes), directory_id))
        try:
            directory = Directory.claim(files, node_id=record.node_id, cluster_id=cluster_id, new_id=lambda: next(ids))
            self._undo.callback(directory.release)
            accept = settings.storage.accept_restored
            self._data = DirectoryState.enter(files, directory, self._workers, boot_id=self._boot_id, accept=accept)
        except (ConfigError, StorageError) as error:
            raise type(error)(f"{settings.storage.data_dir}: {error}") from error
        self._membership.cluster_id = directory.cluster_id
        self._undo.push_async_callback(self._leave_directory)
        return directory

    async def _leave_directory(self) -> None:
        """The last thing that a broker does. It is clean if nothing went wrong."""
        clean = self._may_be_clean and not self.service.faults
        await self._run(lambda: self._data.leave(clean=clean))

    def _open_metadata(self, files: TrackedFiles) -> Controller:
        cluster = self._settings.cluster
        accept = self._settings.storage.accept_restored
        storage = RaftStorage.open(files, applied=(0, 0) if accept else self._data.manifest.applied)
        self._undo.callback(storage.close)
        controller = Controller(
            storage,
            workers=self._workers,
            dice=self._dice,
            node_id=self._settings.broker.node_id,
            options=RaftOptions(election_ticks=ELECTION_TICKS),
            tick_s=cluster.election_ms / 1000 / ELECTION_TICKS,
            snapshot_after=cluster.snapshot_records,
        )
        self._undo.push_async_callback(controller.close)
        controller.subscribe(self._address_book.changed)
        controller.load(found=not files.exists(JOINED_PATH))
        self._address_book.hint(remembered(files))
        self._address_book.hint(controller.known_addresses())
        return controller

    def _open_catalog(self, files: TrackedFiles, partitions: Partitions) -> Cataloguing | None:
        if not isinstance(files, DiskFiles):
            return None
        catalog = Catalog(files, f"{files.root}/{CATALOG_PATH}")
        self._undo.callback(catalog.close)
        cataloguing = Cataloguing(catalog, partitions, self._workers)
        cataloguing.start()
        return cataloguing

    async def _open_doors(
        self, service: Service, kafka: KafkaServer, housekeeping: Housekeeping, cataloguing: Cataloguing | None
    ) -> None:
        flusher = service.flusher
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
        service.serving = True
        await kafka.start()
        self._undo.callback(kafka.refuse_new)
        probe = asyncio.create_task(loops.probe(self._counters.loop_delay_seconds, each=logs.sweep), name="loop-probe")
        self._undo.callback(probe.cancel)
        port = kafka.port
        self.addresses = Addresses(self._settings.kafka.host, port)
        if self._settings.http.enabled:
            http = self._http_server(service)
            self._undo.push_async_callback(http.stop)
            http_port = await http.start()
            self.addresses = Addresses(self._settings.kafka.host, port, self._settings.http.host, http_port)

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
