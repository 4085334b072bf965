"""One history: processes, blows and witnesses, then the judgement."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.core.errors import HeadraceError
from headrace.testing.exactly_once.journal import JournalReader
from headrace.testing.exactly_once.oracle import Evidence, complaints
from headrace.testing.exactly_once.plan import Blow, Fault, Plan, plan
from headrace.testing.exactly_once.stage import LOG_LINES, Lone, Several, Stage
from headrace.testing.exactly_once.transformer import (
    BILLS,
    BRISK,
    ENDED,
    FENCED,
    LEDGER,
    ORDERS,
    PARTITIONS,
    STUCK,
    Bill,
    Orders,
    insist,
)
from headrace.testing.exactly_once.witnesses import (
    Auditor,
    Clerk,
    Feeder,
    Witness,
    end_offsets,
    read_all,
    wait_until,
)
from headrace.testing.topics import create

OFFSETS_TOPIC = "__consumer_offsets"
CALL_SECONDS = 60.0


class HistoryError(AssertionError):
    """A history broke a promise."""


class Outcome(NamedTuple):
    """What happened in a history that kept all promises."""

    seed: int
    seconds: float
    orders: int
    steps: Counter[str]  # of the transformers, as they wrote them down
    fenced: int
    stuck: int  # transformers that gave up, for their client's sake
    mishaps: Counter[str]  # of the proxy
    blows: Counter[str]

    def __str__(self) -> str:
        counts = ", ".join(f"{self.steps[step]} {step}" for step in ("committed", "aborted"))
        blows = ", ".join(
            f"{count} x {blow.split(' and ')[0].split(', ')[0]}" for blow, count in sorted(self.blows.items())
        )
        mishaps = f"; mishaps: {dict(sorted(self.mishaps.items()))}" if self.mishaps else ""
        return (
            f"seed {self.seed}: {self.orders} orders, transactions: {counts}, {self.fenced} fenced, "
            f"{self.stuck} stuck; {blows}{mishaps}; {self.seconds:.1f} s"
        )


def replay_command(seed: int, *, proxy: bool, nodes: int = 1) -> str:
    words = f"{' --proxy' if proxy else ''}{f' --nodes {nodes}' if nodes > 1 else ''}"
    return f"python -m headrace.testing.exactly_once --seed {seed}{words}"


def run(seed: int, *, proxy: bool = False, nodes: int = 1, keep: Path | None = None) -> Outcome:
    """Run the history of a seed. Raises HistoryError, which says how to run it again; all files go to `keep` then."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-history-") as folder:
        home = Path(folder)
        stage = Lone(home, seed=seed, proxy=proxy) if nodes == 1 else Several(home, nodes=nodes)
        with History(plan(seed, nodes=nodes), home, stage) as history:
            try:
                history.play()
                failures = list(history.judge())
            except (TimeoutError, RuntimeError, HeadraceError, KafkaException) as error:
                failures = [repr(error), *history.told()]
        if failures:
            story = "\n  ".join([*failures, *history.errors(), *map(str, history.plan.blows)])
            if keep is not None:
                shutil.copytree(home, keep / f"history-{seed}", dirs_exist_ok=True)
            raise HistoryError(
                f"history {seed} failed:\n  {story}\n{stage.log_tail()}\n"
                f"replay it with: {replay_command(seed, proxy=proxy, nodes=nodes)}"
            )
        return history.outcome(time.monotonic() - begun)


class History:
    """See the module."""

    def __init__(self, wanted: Plan, folder: Path, stage: Stage) -> None:
        self.plan = wanted
        self._folder = folder
        self._stage = stage
        self._patience = stage.patience
        self._journals = JournalReader(folder)
        self._numbers = itertools.count(1)
        self._clients: dict[int, subprocess.Popen[bytes]] = {}
        self._incarnations: dict[int, str] = {}
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._fenced = self._stuck = 0
        self._unexpected: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stage.open(self._stack)
        except BaseException:
            self._stack.close()
            raise
        self._servers = self._stage.servers
        self._stack.callback(self._kill_clients)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- the story -----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Deal all the blows, then wait until every order is billed. Raises TimeoutError."""
        self._prepare()
        self._stage.disturb()
        self.feeder, self.auditor, self.clerk = Feeder(self._servers), Auditor(self._servers), Clerk(self._servers)
        self._witnesses: Sequence[Witness] = (self.feeder, self.auditor, self.clerk)
        for witness in self._witnesses:
            witness.start()
        for number in range(self.plan.transformers):
            self._start(number)
        for blow in self.plan.blows:
            self._await(blow)
            self._deal(blow)
        self._count_steps_on(10)
        self.feeder.end()
        billed = self._wait(lambda: self.auditor.billed >= len(self.feeder.orders), self._patience.finish_s)
        if not billed:
            raise TimeoutError(f"{self.auditor.billed} of {len(self.feeder.orders)} orders were billed in time")

    def judge(self) -> list[str]:
        """What is wrong, once the network is well again."""
        self._stage.calm()
        straggler = self._straggle() if self.plan.straggler else None
        self._end_clients()
        found = [] if self._wait(self._is_stable, self._patience.stable_s) else [f"never stable: {self._unstable()}"]
        for witness in (self.auditor, self.clerk):
            witness.end()
        evidence = Evidence(
            frozenset(self.feeder.orders),
            read_all(self._servers, "read_committed"),
            self.auditor.seen,
            read_all(self._servers, "read_uncommitted"),
            self._journals.labels.get("committed", []),
            [*self._journals.labels.get("aborted", []), "straggler"],
        )
        found += complaints(evidence)
        if straggler is not None and not any(b'"straggler"' in value for value in evidence.everything.values()):
            found.append("the straggler's records are nowhere")
        if "Traceback" in self._stage.log_tail(LOG_LINES):
            found.append("a broker's log has a traceback")
        return found + self.told()

    def told(self) -> list[str]:
        """What the witnesses and the clients complain of."""
        return [each for witness in getattr(self, "_witnesses", ()) for each in witness.complaints] + self._unexpected

    def errors(self) -> list[str]:
        """What the clients said."""
        return [line for path in sorted(self._folder.glob("*.stderr")) for line in path.read_text().splitlines()]

    def outcome(self, seconds: float) -> Outcome:
        blows = Counter(str(blow.fault) for blow in self.plan.blows)
        steps = self._journals.counts
        return Outcome(
            self.plan.seed,
            seconds,
            len(self.feeder.orders),
            steps,
            self._fenced,
            self._stuck,
            self._stage.mishaps,
            blows,
        )

    # -- scenes --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Topics, and orders that were taken back: a transformer must never see them."""
        admin = AdminClient({**BRISK, "bootstrap.servers": self._servers})
        for topic, count in PARTITIONS.items():
            create(admin, NewTopic(topic, count, self._stage.replication_factor))
        client = self._producer("giver", self._patience.transaction_timeout_ms)
        insist(lambda: client.init_transactions(CALL_SECONDS))
        client.begin_transaction()
        for index in range(PARTITIONS[ORDERS]):
            client.produce(ORDERS, b"order-taken-back-0", partition=index)
        client.flush(CALL_SECONDS)
        insist(lambda: client.abort_transaction(CALL_SECONDS))

    def _straggle(self) -> Producer:
        """Open a transaction and leave it alone. What it writes must be there before its time is up."""
        timeout_ms = self._patience.straggler_timeout_ms
        while True:
            client = self._producer("straggler", timeout_ms)
            insist(lambda client=client: client.init_transactions(CALL_SECONDS))  # type: ignore[misc]
            begun = time.monotonic()
            client.begin_transaction()
            value = msgspec.json.encode(Bill("straggler", 2, [], doomed=True))
            with suppress(KafkaException):  # it is late already
                client.produce(BILLS, value, partition=0)
                client.produce(LEDGER, value, partition=0)
                client.flush(CALL_SECONDS)
            if time.monotonic() < begun + timeout_ms / 1000:
                return client
            timeout_ms *= 2

    def _producer(self, name: str, timeout_ms: int) -> Producer:
        return Producer(
            {
                **BRISK,
                "bootstrap.servers": self._servers,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )

    def _start(self, number: int) -> None:
        incarnation = f"{number}.{next(self._numbers)}"
        orders = Orders(
            *(self._servers, f"biller-{number}", incarnation, str(self._folder), self.plan.seed),
            transaction_timeout_ms=self._patience.transaction_timeout_ms,
            session_timeout_ms=self._patience.session_timeout_ms,
            give_up_s=self._patience.give_up_s,
        )
        module = "headrace.testing.exactly_once.transformer"
        with (self._folder / f"{incarnation}.stderr").open("wb") as stderr:
            command = [sys.executable, "-m", module, msgspec.json.encode(orders).decode()]
            self._clients[number] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        self._incarnations[number] = incarnation

    def _await(self, blow: Blow) -> None:
        self._count_steps_on(blow.nth, blow.step)
        time.sleep(blow.delay_s)

    def _count_steps_on(self, count: int, step: str = "committed") -> None:
        self._journals.read()
        wanted = self._journals.counts[step] + count
        if not self._wait(lambda: self._journals.counts[step] >= wanted, self._patience.blow_s):
            raise TimeoutError(f"no progress: {dict(self._journals.counts)}")

    def _deal(self, blow: Blow) -> None:
        client = self._clients[blow.victim]
        match blow.fault:
            case Fault.KILL_CLIENT:
                client.kill()
                client.wait()
                self._start(blow.victim)
            case Fault.REPLACE_CLIENT:
                # Whoever comes last has the place, and that shall be the new one.
                self._await_step(blow.victim, "begin")
                client.send_signal(signal.SIGSTOP)
                self._zombies.append(client)
                self._start(blow.victim)
                self._await_step(blow.victim, "begin")
                client.send_signal(signal.SIGCONT)
            case _:
                self._stage.deal(blow)

    def _await_step(self, number: int, step: str) -> None:
        def is_done() -> bool:
            return self._journals.steps[self._incarnations[number]][step] > 0

        if not self._wait(is_done, self._patience.blow_s):
            raise TimeoutError(f"{self._incarnations[number]} did not {step}: {dict(self._journals.counts)}")

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait, and see to the transformers meanwhile: nobody but a zombie may end by itself."""

        def look() -> bool:
            self._journals.read()
            for number, client in list(self._clients.items()):
                if client.poll() is not None:
                    self._ended(number, client.returncode)
                    self._start(number)
            return condition()

        return wait_until(look, seconds)

    def _ended(self, number: int, code: int) -> None:
        if code == STUCK:
            self._stuck += 1
        else:
            self._unexpected.append(f"transformer {number} ended by itself, with {code}")

    def _end_clients(self) -> None:
        """Stop the transformers; whoever was replaced must have found out."""
        for number in list(self._clients):
            self._await_step(number, "ready")  # who has just begun does not know yet what to do when it is told to end
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.terminate()
        for number, client in clients.items():
            if (code := client.wait(self._patience.finish_s)) != ENDED:
                self._ended(number, code)
        zombies, self._zombies = self._zombies, []
        for zombie in zombies:
            try:
                code = zombie.wait(self._patience.stable_s)
            except subprocess.TimeoutExpired:
                zombie.kill()
                code = zombie.wait()
            if code == FENCED:
                self._fenced += 1
            elif code == STUCK:
                self._stuck += 1
            else:
                self._unexpected.append(f"a transformer that was replaced was not fenced, but ended with {code}")

    def _kill_clients(self) -> None:
        for client in (*self._clients.values(), *self._zombies):
            client.kill()
            client.wait()

    def _is_stable(self) -> bool:
        return not self._unstable()

    def _unstable(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Where the last stable offset is behind the high watermark."""
        topics = {**PARTITIONS, OFFSETS_TOPIC: self._stage.offsets_partitions}
        stable = end_offsets(self._servers, topics, "read_committed")
        high = end_offsets(self._servers, topics, "read_uncommitted")
        return {place: (stable[place], end) for place, end in high.items() if stable[place] != end}
