"""Records again: a time range of a topic, or an archive, back into a topic.

Rules:
- Where it ends is decided at the start and kept beside the checkpoint: a replay into the topic that it reads ends.
- Records go exactly once, with key, value and headers as they were; a replay that was interrupted goes on where it was.
- `rate` is records per second at most; the topic sees portions of one second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError
from headrace.spark.cluster import Cluster
from headrace.spark.lake.table import Table
from headrace.spark.options import BOOTSTRAP, EARLIEST, LATEST, parse
from headrace.spark.options import Place as TopicPlace
from headrace.spark.pipeline.runner import PipelineError, cause
from headrace.spark.ranges import from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS: Final = 0.2
_PLAN: Final = "replay.json"

Progress = Callable[[int, int], None]  # records done, records in all


@dataclass(frozen=True, slots=True)
class Replay:
    """From `topic` or `table` to the topic `to`. Times in ms; `start_ms` is included, `end_ms` not."""

    broker: str
    to: str
    folder: Path  # for the plan and the checkpoint
    topic: str = ""
    table: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    where: str = ""  # a further condition, in SQL
    keep_partition: bool = False
    rate: int | None = None
    delivery: str = "exactly_once"

    def run(self, spark: SparkSession, progress: Progress = lambda done, total: None) -> int:
        """Replay to the end; how many offsets (or rows of the table) were gone through."""
        if bool(self.topic) == bool(self.table):
            raise ConfigError("a replay is from a topic or from a table")
        plan = self._plan()
        query = self._start(spark, plan)
        try:
            return self._follow(query, plan, progress)
        finally:
            query.stop()

    def _plan(self) -> dict[str, Any]:
        """Where it starts and ends; read from the folder if it was decided before."""
        path = self.folder / _PLAN
        wish = {name: getattr(self, name) for name in ("topic", "table", "start_ms", "end_ms", "to", "where")}
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if found["wish"] != wish:
                raise ConfigError(f"{self.folder} holds another replay; choose another --folder")
            return found
        plan = {"wish": wish, **(self._topic_plan() if self.topic else self._table_plan())}
        self.folder.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".tmp")  # there as a whole or not at all
        half.write_text(json.dumps(plan), encoding="utf-8")
        half.replace(path)
        return plan

    def _topic_plan(self) -> dict[str, Any]:
        cluster = Cluster(parse({BOOTSTRAP: self.broker, "subscribe": self.topic}, "batch"))
        places = cluster.partitions(parse({BOOTSTRAP: self.broker, "subscribe": self.topic}, "batch").subscription)

        def at(time_ms: int) -> dict[TopicPlace, int]:
            return cluster.offsets(places, dict.fromkeys(places, time_ms))

        latest = at(LATEST)
        start = at(EARLIEST if self.start_ms is None else self.start_ms)
        start = {place: latest[place] if offset < 0 else offset for place, offset in start.items()}
        # Records may be out of order: the time is looked at row by row, up to the end of the log.
        return {"start": to_json(start), "end": to_json(latest)}

    def _table_plan(self) -> dict[str, Any]:
        view = Table(self.table).describe()
        return {"start": {"version": view.version, "row": 0}, "end": {"version": view.version, "row": view.rows}}

    def _frame(self, spark: SparkSession, plan: Mapping[str, Any]) -> DataFrame:
        if self.table:
            reader = spark.readStream.format("headracelake").option("version", str(plan["end"]["version"]))
            if self.rate is not None:
                reader = reader.option("maxRowsPerTrigger", str(self.rate))
            return reader.load(self.table)
        ends = from_json(plan["end"])
        given = {
            BOOTSTRAP: self.broker,
            # Partitions that the topic gains later are not part of the plan.
            "assign": json.dumps({self.topic: sorted(partition for _, partition in ends)}),
            "startingOffsets": json.dumps(plan["start"]),
            "includeHeaders": "true",
            "commitOffsets": "false",
        }
        if self.rate is not None:
            given["maxOffsetsPerTrigger"] = str(self.rate)
        entries = ", ".join(f"{partition}, {end}L" for (_, partition), end in sorted(ends.items()))
        frame = spark.readStream.format("headrace").options(**given).load()
        return frame.where(f"offset < element_at(map({entries}), partition)")

    def _start(self, spark: SparkSession, plan: Mapping[str, Any]) -> StreamingQuery:
        from pyspark.sql import functions as f

        frame = self._frame(spark, plan)
        if self.start_ms is not None:
            frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(self.start_ms)))
        if self.end_ms is not None:
            frame = frame.where(f.col("timestamp") < f.timestamp_millis(f.lit(self.end_ms)))
        if self.where:
            frame = frame.where(self.where)
        columns = ["key", "value", "headers", *(["partition"] if self.keep_partition else [])]
        writer = (
            frame.select(*columns)
            .writeStream.format("headrace")
            .queryName(f"replay-{self.to}")
            .option(BOOTSTRAP, self.broker)
            .option("topic", self.to)
            .option("delivery", self.delivery)
            .option("checkpointLocation", str((self.folder / "checkpoint").resolve()))
        )
        writer = writer.trigger(processingTime="1 second") if self.rate else writer.trigger(availableNow=True)
        return writer.start()

    def _follow(self, query: StreamingQuery, plan: Mapping[str, Any], progress: Progress) -> int:
        total = _distance(plan["start"], plan["end"])
        done = 0
        while True:
            active = query.isActive
            last = query.lastProgress
            if last is not None:
                end = json.loads(last.json)["sources"][0].get("endOffset")
                if end is not None:
                    done = min(total, _distance(plan["start"], end if isinstance(end, dict) else json.loads(end)))
                    progress(done, total)
            if not active:
                break
            if self.rate is not None and done >= total:
                return done
            time.sleep(LOOK_SECONDS)
        error = query.exception()
        if error is not None:
            raise PipelineError(f"the replay failed: {cause(str(error))}")
        progress(total, total)
        return total


def _distance(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    if "row" in end:
        return int(end["row"]) - int(start["row"])
    first, last = from_json(start), from_json(end)
    return sum(max(0, offset - first.get(place, 0)) for place, offset in last.items())
