"""One history: machines, clients and faults, all from one seed; then healing, and the final checks.

Rules:
- Every choice comes from generators that the seed has made; the same seed is the same history (`digest`).
- Faults end by themselves or at the end of the safety phase. Then nothing is wrong any more, and everything has to
  work within LIVENESS_SECONDS.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import sys
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from headrace.broker.commands import Answer, Command
from headrace.core.errors import ConfigError, ErrorCode, StorageError
from headrace.core.ports import Address
from headrace.testing.platter import number_inodes_anew
from headrace.testing.sim import faults, latest, oracles
from headrace.testing.sim.admin import Admin
from headrace.testing.sim.clients import CREATE_TOPICS, LATER, Client, Partition, Unknown
from headrace.testing.sim.clock import SimClock
from headrace.testing.sim.consumers import Member
from headrace.testing.sim.history import History, Violation
from headrace.testing.sim.latest import Keeper
from headrace.testing.sim.loop import OWNER, Owner, SimLoop
from headrace.testing.sim.machine import PORT, Machine
from headrace.testing.sim.modern import FLAGS as NEW_PROTOCOL_FLAGS
from headrace.testing.sim.modern import ModernMember
from headrace.testing.sim.network import Fabric, SimNetwork
from headrace.testing.sim.power import Forfeit, Power
from headrace.testing.sim.producers import Copier, IdempotentProducer, TransactionalProducer
from headrace.testing.sim.program import Harm
from headrace.testing.sim.programs import Programs
from headrace.testing.sim.rebirth import Phoenix
from headrace.testing.sim.variants import VARIANTS, broken
from headrace.testing.sim.watch import Watch

SAFETY_SECONDS: Final = 7.0
LIVENESS_SECONDS: Final = 60.0
EXTRAS: Final = ("rebirth", "compaction", "new protocol")
CLIENT_HOST: Final = "127.0.9.1"


@dataclass(frozen=True, slots=True)
class Options:
    """What a history is made of."""

    seed: int
    nodes: int = 1
    seconds: float = SAFETY_SECONDS
    trace: bool = False
    faults: bool = True
    variant: str | None = None  # how the broker is broken on purpose
    rot: bool = False  # bits turn on the disk: a broker must then refuse, and cannot go on
    simple: bool = False  # idempotent producers only, on topics of one replica
    replication: int | None = None  # factor of the topics; None: as many as there are nodes, 3 at most
    plain: bool = False  # only what the first histories had: every acknowledgement synced
    programs: tuple[str, ...] = ()  # classes of faults beside the first ones


@dataclass(frozen=True, slots=True)
class Report:
    """What happened."""

    seed: int
    digest: str
    turns: int
    virtual_s: float
    facts: dict[str, int]


class World:
    """See the module."""

    def __init__(self, options: Options) -> None:
        if not gc.get_freeze_count():
            gc.freeze()  # nobody needs to look at what was there before the first history
        number_inodes_anew()
        self.options = options
        self.dice = Random(options.seed)
        self.loop = SimLoop()  # type: ignore[abstract]
        self.fabric = Fabric(self.loop, self._stream("network"))
        self.history = History()
        self.failure: BaseException | None = None
        self.failed: asyncio.Event = asyncio.Event()
        self._notes = hashlib.blake2b(digest_size=16)
        self._own = Owner("the world")
        self._ran: dict[asyncio.Task[Any], None] = {}
        self.watch = Watch(self)
        self.clock = SimClock(self.loop.time)
        self.power = Power(self)
        self.harm = Harm(self)
        self.programs = Programs(self)
        self.quiet = bool(options.programs) and self._stream("quiet").random() < 0.5  # nothing else goes wrong
        self.flush = self._draw_flush()
        self.extras = self._draw_extras()
        self.internal_partitions = self.dice.choice((1, 1, 2))
        self.machines = [self._machine(number) for number in range(1, options.nodes + 1)]
        self.min_insync = self.dice.choice((1, 2)) if self.replication > 1 else 1
        if self.flush != "ack":
            self.min_insync = 2
            self.history.count(f"worlds with flush={self.flush}")
        if options.programs and self.replication > 2:
            self.min_insync = 2
        self.topics = {"orders": 2, "bills": 1}
        self.clients: list[Client] = []
        self.producers: list[IdempotentProducer] = []
        self.transactors: list[TransactionalProducer] = []
        self.copiers: list[Copier] = []
        self.members: list[Member] = []
        self.admin: Admin | None = None
        self.phoenix: Phoenix | None = None
        self.keeper: Keeper | None = None

    def _stream(self, name: str) -> Random:
        return Random(f"{self.options.seed}/{name}")

    def _draw_flush(self) -> str:
        """How acknowledgements wait for disks. From a stream of its own: what was drawn before stays as it was."""
        options = self.options
        if options.variant is not None:
            return VARIANTS[options.variant].flush
        if options.plain or options.simple or options.rot or options.nodes < 3 or options.programs:
            return "ack"
        return self._stream("flush").choice(("ack", "ack", "ack", "ack", "os", "os", "interval"))

    def _draw_extras(self) -> tuple[str, ...]:
        """What later histories have beyond the first, some of it each."""
        options = self.options
        dice = self._stream("extras")
        drawn = [each for each in EXTRAS if dice.random() < 0.25]
        if options.plain or options.simple or options.rot or options.variant is not None:
            drawn = []
        return tuple(each for each in EXTRAS if each in drawn or each in options.programs)

    def _machine(self, node_id: int) -> Machine:
        flags = {
            "storage.flush": self.flush,
            "storage.flush_interval_ms": "300",
            "group.offsets_partitions": str(self.internal_partitions),
            "transactions.partitions": str(self.internal_partitions),
            "group.initial_rebalance_delay_ms": "0",
            "storage.retention_ms": "-1",
        }
        near = self.options.seed % 2 == 0  # nodes of one machine need no secret
        host = f"127.0.1.{node_id}" if near else f"10.0.1.{node_id}"
        if "compaction" in self.extras:
            flags.update(latest.FLAGS)
        if "new protocol" in self.extras:
            flags.update(NEW_PROTOCOL_FLAGS)
        if self.options.variant is not None:
            flags.update(VARIANTS[self.options.variant].flags)
        if self.options.programs and self.options.nodes >= 3:
            flags["broker.min_insync_replicas"] = "2"  # of the coordinators' topics, too
        if self.options.nodes > 1:
            if not near:
                flags["cluster.secret"] = "between us"
            flags["cluster.replica_lag_ms"] = str(Random(self.options.seed).choice((1000, 3000, 10000)))
            if node_id > 1:
                others = range(1, self.options.nodes + 1)
                flags["cluster.join"] = ",".join(
                    f"{host.rpartition('.')[0]}.{number}:{PORT}" for number in others if number != node_id
                )
        small = {"segment_bytes": self.dice.choice((4096, 16384, 1 << 20)), "index_interval_bytes": 256}
        return Machine(self.loop, self.fabric, node_id, flags, small, self._stream(f"machine {node_id}"), host)

    @property
    def replication(self) -> int:
        wanted = 1 if self.options.simple else self.options.replication
        return min(3, len(self.machines)) if wanted is None else wanted

    @property
    def partitions(self) -> list[Partition]:
        return [(topic, index) for topic, count in self.topics.items() for index in range(count)]

    # -- what happens

    def note(self, text: str) -> None:
        """Part of the history: it is hashed, and printed in a replay."""
        self._notes.update(f"{self.loop.time():.6f} {text}\n".encode())
        if self.options.trace:
            print(f"{self.loop.time():9.4f}  {text}")

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.failed.set()

    def spawn(self, owner: Owner, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a client; what it raises ends the history."""
        task: asyncio.Task[Any] = owner.context.run(self.loop.create_task, work)
        self._ran[task] = None
        task.add_done_callback(self._ended)
        return task

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a part of the world itself."""
        self.spawn(self._own, work)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something as the world itself."""
        self.loop.call_later(seconds, work, context=self._own.context)

    @property
    def is_busy(self) -> bool:
        """Whether some client is still at work."""
        return bool(self._ran)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ran.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def node_of(self, owner: Owner | None) -> int | None:
        """Whose process that is."""
        return next((each.node_id for each in self.machines if each.owner is owner), None)

    def start(self, machine: Machine) -> None:
        self.note(f"start node {machine.node_id}")

        def failed(error: Exception) -> None:
            self.note(f"node {machine.node_id} does not start: {error}")
            is_unwanted = machine.retiring and isinstance(error, ConfigError)
            if machine.on_refusal is not None:
                self.history.count("starts refused")
                machine.on_refusal(machine)
            elif not machine.disk_fails and not is_unwanted:
                self.fail(Violation(f"node {machine.node_id} does not start: {error!r}"))

        machine.start(failed)

    # -- the phases

    def run(self) -> Report:
        """Raises Violation, or whatever went wrong."""
        gc_was_on = gc.isenabled()
        gc.disable()  # it would run code of the dead, at moments that no seed knows
        watch = _ErrorLog(self)
        log = logging.getLogger("headrace")
        before = (log.level, log.propagate)
        log.setLevel(logging.ERROR)
        log.propagate = False
        log.addHandler(watch)
        self.loop.set_exception_handler(lambda _, context: self._unhandled(context))
        try:
            with self.watch.on(), self.programs.on(), broken(self.options.variant):
                self.loop.run_until_complete(self._live())
            if isinstance(self.failure, Forfeit):
                self.history.count("histories without a promise left")
            elif self.failure is not None:
                raise self.failure
        finally:
            self.loop.close()
            log.removeHandler(watch)
            log.setLevel(before[0])
            log.propagate = before[1]
            self.note(f"turns {self.loop.turns} sent {self.fabric.sent}")
            report = Report(
                self.options.seed, self._notes.hexdigest(), self.loop.turns, self.loop.time(), dict(self.history.facts)
            )
            self._end()
            if gc_was_on:
                gc.enable()
        return report

    def _end(self) -> None:
        """Let go of the living and the dead, here and now. They may complain; nobody listens."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self.loop.forget_the_dead()
        vars(self).clear()
        with warnings.catch_warnings(action="ignore"):
            for _ in range(9):
                if not gc.collect():
                    break  # at last: what they did at their end left something, too
        sys.unraisablehook = hook

    def _unhandled(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, StorageError | Unknown):
            self.fail(error)

    async def _live(self) -> None:
        phases = asyncio.ensure_future(self._phases())
        stop = asyncio.ensure_future(self.failed.wait())
        await asyncio.wait([phases, stop], return_when=asyncio.FIRST_COMPLETED)
        if phases.done() and (error := phases.exception()) is not None:
            self.fail(error)

    async def _phases(self) -> None:
        self.start(self.machines[0])
        await self.until("the first node to serve", lambda: self.machines[0].is_serving, 20)
        for machine in self.machines[1:]:
            self.start(machine)
        await self.until("the nodes to serve", lambda: all(each.is_serving for each in self.machines), 30)
        await self._create_topics()
        self._begin_clients()
        self.programs.begin()
        if self.programs:
            await asyncio.gather(self.programs.run(self.options.seconds), self._trouble())
        else:
            await self._trouble()
        self.note("heal")
        await self._heal()
        await oracles.Finale(self).run()

    async def _trouble(self) -> None:
        if self.options.faults and not self.quiet:
            await faults.Trouble(self).run(self.options.seconds)
        else:
            await asyncio.sleep(self.options.seconds)

    async def _create_topics(self) -> None:
        admin = self.client("admin")
        rows = [
            {
                "name": name,
                "num_partitions": count,
                "replication_factor": self.replication,
                "configs": [{"name": "min.insync.replicas", "value": str(self.min_insync)}],
            }
            for name, count in self.topics.items()
        ]
        if "compaction" in self.extras:
            more = [{"name": name, "value": value} for name, value in latest.CONFIGS.items()]
            rows.append({**rows[0], "name": latest.NAME, "num_partitions": 1})
            rows[-1]["configs"] = [{"name": "min.insync.replicas", "value": str(self.min_insync)}, *more]

        async def create() -> None:
            while rows:
                try:
                    answer = await admin.call(admin.anybody(), CREATE_TOPICS, {"topics": rows, "timeout": 5000}, 10)
                except Unknown:
                    await admin.pause(0.2)
                    continue
                for topic in answer.topics:
                    if topic.error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
                        rows[:] = [row for row in rows if row["name"] != topic.name]
                    elif topic.error_code not in LATER | {ErrorCode.invalid_replication_factor}:
                        raise Violation(f"CreateTopics: {topic.error_code.name} {topic.error_message}")
                await admin.pause(0.05)

        task = self.spawn(Owner("admin"), create())
        await self.until("the topics to be there", task.done, 30)

    def client(self, name: str) -> Client:
        """A client process of its own, on a host of its own."""
        host = f"127.0.9.{len(self.clients) + 1}"
        seeds: list[Address] = [machine.address for machine in self.machines]
        client = Client(name, SimNetwork(self.fabric, host), seeds, self._stream(name))
        client.disks_lie = "reads" in self.options.programs or "folders" in self.options.programs
        self.clients.append(client)
        return client

    def _begin_clients(self) -> None:
        orders = [("orders", index) for index in range(self.topics["orders"])]
        now_ms: Callable[[], int] = self.clock.now_ms
        for name in self.dice.choice((("ida",), ("ida", "ivo"))):
            producer = IdempotentProducer(self.client(name), self.history, orders, now_ms)
            self.producers.append(producer)
            self.spawn(Owner(name), producer.run())
        if self.options.simple:
            return
        modern = self.dice.random() < 0.6
        for name in self.dice.choice((("tom",), ("tom", "ute"))):
            transactor = TransactionalProducer(self.client(name), self.history, orders, now_ms, modern=modern)
            self.transactors.append(transactor)
            self.spawn(Owner(name), transactor.run())
            modern = not modern
        copier = Copier(self.client("cas"), self.history, orders[0], ("bills", 0), now_ms=now_ms, modern=modern)
        self.copiers.append(copier)
        self.spawn(Owner("cas"), copier.run())
        if len(self.machines) > 1:
            self.admin = Admin(self.client("ada"), self.history, "bills")
            self.spawn(Owner("ada"), self.admin.run())
        self._begin_more_clients()
        for name in ("mia", "max"):
            member = Member(self.client(name), self.history, "readers", orders)
            self.members.append(member)
            self.spawn(Owner(name), member.run())

    def _begin_more_clients(self) -> None:
        """What only some histories have."""
        now_ms, factor = self.clock.now_ms, self.replication
        if "rebirth" in self.extras:
            client, reader = self.client("pia"), self.client("pit")
            self.phoenix = Phoenix(client, reader, self.history, now_ms, factor=factor, in_sync=self.min_insync)
            self.spawn(Owner("pia"), self.phoenix.run())
            self.spawn(Owner("pit"), self.phoenix.read())
        if "compaction" in self.extras:
            self.keeper = Keeper(self.client("kai"), self.client("kim"), self.history, now_ms)
            self.spawn(Owner("kai"), self.keeper.run())
            self.spawn(Owner("kim"), self.keeper.read())
        if "new protocol" in self.extras:
            orders = [("orders", index) for index in range(self.topics["orders"])]
            for name in ("nia", "nil"):
                member = ModernMember(self.client(name), self.history, "modern readers", orders)
                self.members.append(member)
                self.spawn(Owner(name), member.run())

    async def _heal(self) -> None:
        for member in self.members:
            member.restless = False
        self.programs.heal()
        self.fabric.heal_all()
        self.fabric.loss = self.fabric.doubling = 0.0
        self.fabric.delay_s = 0.0005
        for machine in self.machines:
            machine.resume()
            machine.files.heal()
            machine.workers.delay_s = 0.001
            if machine.disk_is_bad:
                machine.kill()  # a disk that has failed is offline until the process starts again
            if not machine.is_up:
                self.start(machine)
        await self.until("the nodes to serve", lambda: all(each.is_serving for each in self.machines), 30)
        if self.programs:
            await self.programs.restore()
            await self.until("the nodes to serve", lambda: all(each.is_serving for each in self.machines), 30)

    # -- the cluster itself

    def grow(self) -> Machine:
        """One machine more, which joins."""
        machine = self._machine(1 + max(each.node_id for each in self.machines))
        self.machines.append(machine)
        self.start(machine)
        return machine

    def shrink(self, machine: Machine) -> None:
        """A machine that belongs to the cluster no more."""
        machine.kill()
        self.machines.remove(machine)

    async def ask(self, command: Command, seconds: float = 5.0) -> Answer | None:
        """Ask something of the controller, through some node; None if nobody knows what became of it."""
        serving = [each for each in self.machines if each.is_serving]
        if not serving:
            return None
        machine = self.dice.choice(serving)
        assert machine.owner is not None
        work = machine.service.council.ask(command, timeout_s=seconds)
        task: asyncio.Task[Answer] = machine.owner.context.run(self.loop.create_task, work)
        await asyncio.wait([task], timeout=2 * seconds)
        if not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for something that must come. Raises Violation if it does not."""
        deadline = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > deadline:
                raise Violation(f"waited {seconds:g} s in vain for {what}")
            await asyncio.sleep(0.05)


_LOG_FIELDS: Final = frozenset(vars(logging.makeLogRecord({})))


class _ErrorLog(logging.Handler):
    """An exception that a broker logs because nobody expected it is a failure of the history."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        about = {name: value for name, value in vars(record).items() if name not in _LOG_FIELDS}
        self._world.note(f"log: {record.getMessage()} {about or ''} {error or ''}")
        if error is not None and not isinstance(error, StorageError):
            self._world.fail(error)
        if record.levelno >= logging.CRITICAL:
            owner = OWNER.get()
            excused = any(each.owner is owner and each.may_complain for each in self._world.machines)
            if not excused:
                self._world.fail(Violation(f"{owner}: {record.getMessage()} {about}"))
