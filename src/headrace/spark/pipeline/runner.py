"""Runs a pipeline: one Structured Streaming query per sink, watched, restarted when something passing fails, stopped
cleanly.

Rules:
- Each query has its own checkpoint (`<checkpoint>/<sink>`), from which it goes on exactly where it was.
- A query that fails is started again after a pause, at most `restarts` times in a row without progress in between.
  What will not pass (a wrong setting, lost data, a table that does not fit) is not tried again.
- Stopping waits for the batch in progress. What was not committed is done again at the next start.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError, HeadraceError
from headrace.spark.lake.archive import Archive, TypedValues
from headrace.spark.pipeline import state as states
from headrace.spark.pipeline.config import (
    ArchiveSink,
    ConsoleSink,
    Pipeline,
    Sink,
    TopicSink,
    TopicSource,
    interval,
)
from headrace.spark.pipeline.frames import Frames, first_line, place, source_options
from headrace.spark.pipeline.lineage import carried, couriers, with_letters
from headrace.spark.pipeline.sinks import Flow, letter_flow, sink_flow, stream
from headrace.spark.pipeline.state import State
from headrace.spark.pipeline.watch import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS: Final = 0.25
PAUSE_SECONDS: Final = 2.0  # before the first restart; twice as long before every further one
LONGEST_PAUSE_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
# Errors of ours (or of Spark's analysis) that the next attempt would meet again.
_LASTING: Final = re.compile(
    r"headrace\.\S*(ConfigError|TableError|LostRecordsError|ReplayError|FencedError)\b|AnalysisException"
    r"|does not fit"
)

Start = Callable[[], "StreamingQuery"]


class PipelineError(HeadraceError):
    """A query of a pipeline failed."""


class Runner:
    """See the module."""

    def __init__(
        self,
        pipeline: Pipeline,
        folder: Path,
        spark: SparkSession,
        *,
        once: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._spark = spark
        self._once = once or pipeline.trigger.once
        self._say = say
        self._state = State(folder)
        self._watch = Watch(self._tell, self._state.read()["queries"], say)
        self._starts: dict[str, Start] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._failures: dict[str, tuple[int, int]] = {}  # in a row, and at which batch
        self._began_at = 0.0
        self._current = states.RUNNING
        self._telling = threading.Lock()
        self._told_all = False
        self._error = ""
        self.stop_asked = False  # set from a signal handler

    def run(self) -> None:
        """Run until all is done (`once`), until stopped, or until something fails for good. Raises PipelineError."""
        with self._state.held():
            self._began_at = time.time()
            self._spark.streams.addListener(self._watch)
            try:
                self._plan()
                for name in self._starts:
                    self._start(name)
                self._tell()
                self._look_after()
                self._current = states.FINISHED if self._once and not self._wants_stop() else states.STOPPED
            except BaseException as error:
                self._current = states.STOPPED if isinstance(error, KeyboardInterrupt) else states.FAILED
                self._error = "" if isinstance(error, KeyboardInterrupt) else cause(str(error))
                raise
            finally:
                self._stop_all()
                self._spark.streams.removeListener(self._watch)
                self._tell(last=True)

    @property
    def queries(self) -> dict[str, dict[str, Any]]:
        return self._watch.queries

    # what is run

    def _plan(self) -> None:
        carriers = couriers(self._pipeline, self._folder)
        for sink in self._pipeline.sinks:
            self._starts[sink.name] = self._starter(sink, carried(sink.name, carriers))
        for source in with_letters(self._pipeline):
            if source not in carriers:
                query = f"{source}-dlq"
                frames = Frames(self._spark, self._pipeline, self._folder, query=query)
                self._starts[query] = self._started(query, stream(self._letters(source, frames)))

    def _starter(self, sink: Sink, letters: list[str]) -> Start:
        if isinstance(sink, ArchiveSink):
            return self._archive(sink)
        frames = Frames(self._spark, self._pipeline, self._folder, query=sink.name)
        frame = frames.views[sink.view]
        if not frame.isStreaming:
            raise ConfigError(f"sink {sink.name}: {sink.view!r} does not stream; no source of it is a stream")
        if isinstance(sink, ConsoleSink):
            return self._started(sink.name, self._shown(sink, frame))
        writer = stream(
            sink_flow(self._pipeline, self._folder, sink, frame),
            [self._letters(source, frames) for source in letters],
            mode=sink.mode if isinstance(sink, TopicSink) else "append",
            staging=f"{self._checkpoint(sink.name)}/headrace-staging",
        )
        return self._started(sink.name, writer)

    def _letters(self, name: str, frames: Frames) -> Flow:
        source = self._pipeline.sources[name]
        assert isinstance(source, TopicSource) and source.decode is not None
        return letter_flow(self._pipeline, self._folder, name, source.decode, frames.bad[name])

    def _shown(self, sink: ConsoleSink, frame: DataFrame) -> Any:
        say, rows = self._say, sink.rows

        def show(batch: DataFrame, batch_id: int) -> None:
            for row in batch.limit(rows).collect():
                say(f"batch {batch_id}: {row.asDict(recursive=True)}")

        return frame.writeStream.outputMode(sink.mode).foreachBatch(show)

    def _started(self, name: str, writer: Any) -> Start:
        writer = writer.queryName(f"{self._pipeline.name}.{name}").option("checkpointLocation", self._checkpoint(name))
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif self._pipeline.trigger.interval:
            writer = writer.trigger(processingTime=interval(self._pipeline.trigger.interval))
        start: Start = writer.start
        return start

    def _archive(self, sink: ArchiveSink) -> Start:
        source = self._pipeline.sources[sink.view]
        assert isinstance(source, TopicSource)
        archive = Archive(
            source_options(self._pipeline, sink.view, source, sink.name),
            place(self._folder, sink.path),
            self._checkpoint(sink.name),
            data=self._typed(sink),
            name=f"{self._pipeline.name}.{sink.name}",
            compact_after=sink.compact_after,
        )
        every = interval(self._pipeline.trigger.interval) if self._pipeline.trigger.interval else None
        return lambda: archive.start(self._spark, once=self._once, interval=every)

    def _typed(self, sink: ArchiveSink) -> TypedValues | None:
        if not sink.schema:
            return None
        if sink.value == "json":
            return TypedValues(sink.schema)
        return TypedValues.of_file(self._folder / sink.schema, sink.value, sink.message)

    def _checkpoint(self, name: str) -> str:
        return f"{place(self._folder, self._pipeline.checkpoint)}/{name}"

    # while it runs

    def _start(self, name: str) -> None:
        query = self._starts[name]()
        self._queries[name] = query
        self._watch.follow(str(query.id), name)

    def _look_after(self) -> None:
        while self._queries and not self._wants_stop():
            for name, query in list(self._queries.items()):
                if query.isActive:
                    continue
                error = query.exception()
                self._watch.catch_up(name, query.recentProgress)
                if error is None:
                    del self._queries[name]
                else:
                    self._recover(name, str(error))
            time.sleep(LOOK_SECONDS)

    def _recover(self, name: str, message: str) -> None:
        reason = cause(message)
        self._watch.fail(name, reason)
        self._tell()
        batch = int(self._watch.queries.get(name, {}).get("batch", -1))
        count, before = self._failures.get(name, (0, batch))
        count = count + 1 if before == batch else 1
        self._failures[name] = (count, batch)
        if is_lasting(message) or count > self._pipeline.restarts:
            raise PipelineError(f"{name}: {reason}")
        self._say(f"{name}: {reason}; starting it again ({count} of {self._pipeline.restarts})")
        until = time.monotonic() + min(PAUSE_SECONDS * 2 ** (count - 1), LONGEST_PAUSE_SECONDS)
        while time.monotonic() < until and not self._wants_stop():
            time.sleep(LOOK_SECONDS)
        if not self._wants_stop():
            self._start(name)

    def _wants_stop(self) -> bool:
        return self.stop_asked or self._state.should_stop()

    def _stop_all(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for name, query in self._queries.items():
            while query.isActive and query.status.get("isTriggerActive") and time.monotonic() < deadline:
                if query.status.get("message", "").startswith(("Waiting", "Getting offsets")):
                    break
                time.sleep(LOOK_SECONDS)
            query.stop()
            self._watch.catch_up(name, query.recentProgress)  # its last batch, of which Spark has not told yet

    def _tell(self, *, last: bool = False) -> None:
        """Called by Spark's thread, too: what is told last is the newest, and nothing is told after the end."""
        with self._telling:
            if self._told_all:
                return
            self._told_all = last
            self._state.write(
                name=self._pipeline.name,
                state=self._current,
                error=self._error,
                started_at=self._began_at,
                once=self._once,
                broker=self._pipeline.broker,
                queries=self._watch.told(),
            )


def is_lasting(message: str) -> bool:
    """Whether an error of Spark's tells of one that the next attempt would meet again."""
    return _LASTING.search(message) is not None


def cause(message: str) -> str:
    """The one line of a Spark error that says why."""
    ours = re.findall(r"headrace\.[\w.]*?(?:Error|Exception): (.+)", message)
    if ours:
        return str(ours[-1]).strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    line = told[-1] if told else first_line(Exception(message))
    found = re.search(r"terminated with exception: (.+)", line)
    return found[1] if found else line
