"""The demo as a play: shops send, Spark counts and archives, the pipeline is killed and comes back, the books agree.

Rules:
- Whatever happens, nothing is left running and the directory is removed, unless it is to be kept.
- Every wait has a deadline, and looks at whether the others still live.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.demo import books, setting
from headrace.cli.demo.books import Check
from headrace.cli.demo.day import CITIES, ORDERS, TOPICS, Day
from headrace.cli.demo.process import PipelineProcess, run_pipeline
from headrace.cli.demo.shops import Shops
from headrace.cli.demo.tally import Tally
from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace import Broker

LOOK_SECONDS: Final = 0.125
SAMPLE_SECONDS: Final = 0.5
ENDS_SECONDS: Final = 0.4
PATIENCE_SECONDS: Final = 240.0
DOWN_SECONDS: Final = 1.5  # between kill and restart, for the eye


class DemoError(HeadraceError):
    """The demo cannot go on."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of the topic of orders at one moment: sent, archived, and in windows that are closed."""

    at: float
    sent: int
    archived: int
    counted: int


@dataclass(slots=True)
class Story:
    """What happened, for the screen and for the report."""

    began: float
    orders: int
    pipeline: str = ""
    events: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    killed_at: float | None = None
    back_at: float | None = None
    checks: list[Check] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    took: float = 0.0

    def now(self) -> float:
        return time.monotonic() - self.began


class Play:
    """See the module. `show` is called often; `tell` for every event."""

    def __init__(
        self, orders: int, seconds: float, show: Callable[[Play], None], tell: Callable[[float, str], None]
    ) -> None:
        self.story = Story(time.monotonic(), orders)
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
        self.home = self.folder / "coffee"
        self.shops: Shops | None = None
        self.tally: Tally | None = None
        self.process: PipelineProcess | None = None
        self._broker: Broker | None = None
        self._seconds = seconds
        self._show, self._tell = show, tell
        self._next_sample = self._next_look = 0.0
        self._found_ends: dict[tuple[str, int], int] = {}

    # the acts

    def run(self) -> bool:
        """All of it; whether the books agree."""
        self._open()
        self._until(self._has_results, "the first windows to be closed")
        self._kill()
        assert self.shops is not None and self.tally is not None
        shops = self.shops
        self._until(lambda: not shops.is_alive(), "the end of the day")
        self._note(f"the shops are closed: {shops.day.truth.orders:,} orders, {shops.day.truth.late:,} of them late")
        self._until(self._is_drained, "Spark to be done")
        self._stop()
        self._settle()
        self.story.took = self.story.now()
        return all(check.good for check in self.story.checks)

    def close(self, *, keep: bool = False) -> None:
        """Leave nothing behind."""
        for thread in (self.shops, self.tally):
            if thread is not None:
                thread.leave.set()
        if self.process is not None:
            self.process.end()
        for thread in (self.shops, self.tally):
            if thread is not None and thread.is_alive():
                thread.join(10)
        if self._broker is not None:
            self._broker.stop()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        from headrace import Broker

        began = time.perf_counter()
        self._broker = Broker(str(self.folder / "broker"))
        self._broker.start()
        address = self._broker.bootstrap_servers
        self._note(f"a broker is up on {address} after {(time.perf_counter() - began) * 1000:.0f} ms, data on disk")
        admin = AdminClient({"bootstrap.servers": address})
        made = {**TOPICS, setting.PER_HOUR: 1, setting.BROKEN: 1, setting.AGAIN: 1}
        for made_one in admin.create_topics([NewTopic(*each, 1) for each in made.items()]).values():
            made_one.result(30)
        self.story.pipeline = setting.write(self.home, address)
        self.process = run_pipeline(self.home, self.folder / "pipeline.log")
        self._note("Spark starts in a process of its own: a roll-up and an archive")
        self.shops = Shops(Day(self.story.orders, datetime.now(UTC).date()), address, self._seconds)
        self.tally = Tally(address)
        self.tally.start()
        self.shops.start()
        self._note(f"{len(CITIES)} shops open and send orders, payments and clicks to {len(TOPICS)} topics")

    def _has_results(self) -> bool:
        assert self.tally is not None and self.shops is not None
        return self.tally.orders > 0 and self.archived() > 0 and self.shops.part >= 0.4

    def _kill(self) -> None:
        assert self.process is not None and self.shops is not None and self.tally is not None
        count = self.process.kill()
        self.process = None
        self.story.killed_at = self.story.now()
        self._note(f"kill -9: all {count} processes of the pipeline are gone")
        self.shops.hurry.set()
        until = time.monotonic() + DOWN_SECONDS
        self._until(lambda: time.monotonic() >= until, "a moment")
        before = self.archived()
        self.process = run_pipeline(self.home, self.folder / "pipeline.log")
        self._note("the pipeline is started again; the shops go on sending")
        self._until(lambda: self.archived() > before, "the pipeline to be back")
        self.story.back_at = self.story.now()
        away = self.story.back_at - self.story.killed_at
        self._note(f"it is back after {away:.0f} s and goes on where it was")

    def _is_drained(self) -> bool:
        assert self.tally is not None and self.shops is not None
        truth = self.shops.day.truth
        return (
            self.archived() >= truth.sent[ORDERS]
            and sum(self._ends().values()) >= truth.sent.total()
            and len(self.tally.cells) >= len(truth.cells)
            and self.tally.letters.total() >= truth.broken.total()
        )

    def _stop(self) -> None:
        from headrace.spark.pipeline.state import State

        State(self.home).ask_to_stop()
        self._note("all is counted; Spark answers a question and replays payments")
        process, answers = self.process, self.home / setting.ANSWERS
        assert process is not None
        self._until(answers.exists, "the answer")
        self.story.answers = json.loads(answers.read_text(encoding="utf-8"))
        process.end()
        self.process = None

    def _settle(self) -> None:
        from headrace.spark.lake import arrow_table, verify

        assert self.tally is not None and self.shops is not None and self._broker is not None
        truth, tally, answers = self.shops.day.truth, self.tally, self.story.answers
        cash = truth.cash.total()
        self._until(lambda: tally.again.total() >= cash, "the replayed records", may_fail=True)
        archive = self.home / setting.ARCHIVE
        values = arrow_table(archive, ["value"], filters=[("topic", "=", ORDERS)])["value"].to_pylist()
        proof = verify(str(archive), bootstrap=self._broker.bootstrap_servers)
        faults = [fault for each in proof.partitions for fault in each.faults]
        self.story.checks = [
            books.check_rollup(truth, tally.cells, tally.seen),
            books.check_archive(truth, values),
            books.check_proof(truth, proof.holds, sum(each.rows for each in proof.partitions), proof.files, faults),
            books.check_letters(truth, tally.letters, tally.unexplained, len(tally.reasons)),
            books.check_answer(truth, answers["products"], answers["sql_seconds"]),
            books.check_replay(truth, tally.again, answers["replay_seconds"]),
        ]

    # watching

    def _until(self, done: Callable[[], bool], what: str, *, may_fail: bool = False) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if self.shops is not None and self.shops.failure:
                raise DemoError(f"the shops cannot send: {self.shops.failure}")
            if self.process is not None and self.process.exit_code is not None:
                if done():  # it may have ended with what we wait for
                    return
                raise DemoError(f"the pipeline ended early: {self.process.last_words()}")
            if time.monotonic() > deadline:
                if may_fail:
                    return
                raise DemoError(f"waited {PATIENCE_SECONDS:.0f} s for {what}; --keep keeps the logs")
            self._sample()
            self._show(self)
            time.sleep(LOOK_SECONDS)

    def _sample(self) -> None:
        if self.shops is None or self.tally is None or self.story.now() < self._next_sample:
            return
        self._next_sample = self.story.now() + SAMPLE_SECONDS
        sent = self.shops.sent
        self.story.samples.append(Sample(self.story.now(), sent, min(self.archived(), sent), self.tally.orders))

    def _ends(self) -> dict[tuple[str, int], int]:
        """How far the archive is, looked up now and then."""
        from headrace.spark.lake import Table

        if self.story.now() >= self._next_look:
            table = Table(self.home / setting.ARCHIVE)
            self._found_ends = table.ends() if table.exists() else {}
            self._next_look = self.story.now() + ENDS_SECONDS
        return self._found_ends

    def archived(self) -> int:
        """Records of the topic of orders in the archive."""
        return sum(end for (topic, _), end in self._ends().items() if topic == ORDERS)

    def _note(self, text: str) -> None:
        self.story.events.append((self.story.now(), text))
        self._tell(self.story.now(), text)
        self._show(self)
