"""SQL over topics, live and archived together.

Rules:
- A name in the statement that is no view and no table of Spark's is a topic. Its rows are the archive's, at one
  version, and the broker's from exactly where that version ends: no record twice, none left out.
- Key and value are text. If most values of a sample are JSON objects, their fields are columns too, of the type that
  most of them have: what does not fit is null. A field that is called like a column of the record is reached as
  `data.field`. `raw` leaves bytes alone.
- To follow: a statement that only chooses rows goes on as a stream from where the first answer ended; any other is
  asked again.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from headrace.core.config import suggestion
from headrace.core.errors import HeadraceError
from headrace.spark.cluster import Cluster, MissingError
from headrace.spark.options import BOOTSTRAP, EARLIEST, LATEST, SourceOptions, parse
from headrace.spark.options import Place as TopicPlace
from headrace.spark.ranges import to_json
from headrace.spark.values.shapes import ddl_of, shape_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE: Final = 200  # records per partition
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


class QueryError(HeadraceError):
    """A statement that cannot be run."""


@dataclass
class Topics:
    """Topics of a broker as tables. `archives` are paths by topic; `lake` is a directory of archives."""

    spark: SparkSession
    bootstrap: str
    archives: Mapping[str, str] = field(default_factory=dict)
    lake: str = ""
    schemas: Mapping[str, str] = field(default_factory=dict)  # DDL by topic
    raw: bool = False
    _kinds: dict[str, str | None] = field(default_factory=dict, init=False)
    _ends: dict[str, dict[TopicPlace, int]] = field(default_factory=dict, init=False)

    def sql(self, statement: str) -> DataFrame:
        """Run a statement over what is there now. Raises QueryError."""
        self._register(statement, streaming=False)
        return self._run(statement)

    def follow(self, statement: str) -> DataFrame | None:
        """A statement as a stream that goes on where the last `sql` ended; None if it cannot be one."""
        self._register(statement, streaming=True)
        frame = self._run(statement)
        return frame if frame.isStreaming and _only_chooses(frame) else None

    def names(self) -> list[str]:
        """The topics that there are."""
        options = self._options("__none__")
        found = Cluster(options).partitions(
            parse({BOOTSTRAP: self.bootstrap, "subscribePattern": ".*"}, "batch").subscription
        )
        return sorted({topic for topic, _ in found})

    # statements

    def _run(self, statement: str) -> DataFrame:
        with sentences():
            return self.spark.sql(statement.strip().rstrip(";"))

    def _register(self, statement: str, *, streaming: bool) -> None:
        wanted = [name for name in relations(self.spark, statement) if not self._is_known(name)]
        if not wanted:
            return
        there = self.names()
        for name in wanted:
            if ", " in name:
                whole = name.replace(", ", ".")
                raise QueryError(f"a topic's name with dots goes in backticks: `{whole}`")
            if name not in there and not self._archive(name):
                raise QueryError(f"there is no topic {name!r}{suggestion(name, there)}")
            frame = self._stream(name) if streaming else self._table(name)
            self._decoded(name, frame).createOrReplaceTempView(f"`{name}`")

    def _is_known(self, name: str) -> bool:
        """Something of the session itself; views of topics are made anew for every statement."""
        if name in self._kinds:
            return False
        plain = name.replace(", ", ".")
        return bool(re.fullmatch(r"\w+(\.\w+)*", plain)) and bool(self.spark.catalog.tableExists(plain))

    # rows

    def _options(self, topic: str) -> SourceOptions:
        return parse({BOOTSTRAP: self.bootstrap, "subscribe": topic}, "batch")

    def _archive(self, topic: str) -> str:
        """Where a topic is archived; empty if nowhere."""
        if topic in self.archives:
            return self.archives[topic]
        if self.lake:
            from headrace.spark.lake.table import Table

            for path in (f"{self.lake}/{topic}", self.lake):
                if Table(path).exists():
                    return path
        return ""

    def _table(self, topic: str) -> DataFrame:
        """All records that there are: the archive's, then the broker's."""
        path = self._archive(topic)
        archived, ends = self._archived(topic, path) if path else (None, {})
        try:
            live = self._live(topic, ends)
        except MissingError as error:
            if archived is None:
                raise QueryError(str(error)) from None
            return archived  # the topic was deleted: its archive is all that is left
        return live if archived is None else archived.unionByName(live)

    def _archived(self, topic: str, path: str) -> tuple[DataFrame | None, dict[TopicPlace, int]]:
        from headrace.spark.lake.reading import read_table
        from headrace.spark.lake.table import Table

        table = Table(path)
        handle = table.open()  # rows and ends are of this one version
        ends = {place: end for place, end in table.ends(handle).items() if place[0] == topic}
        if not ends:
            return None, {}
        rows = read_table(self.spark, path, handle=handle).where(f"topic = '{topic}'")
        return rows.select(*COLUMNS), ends

    def _live(self, topic: str, archived: Mapping[TopicPlace, int]) -> DataFrame:
        """What the broker has beyond the archive, up to now."""
        options = self._options(topic)
        cluster = Cluster(options)
        places = cluster.partitions(options.subscription)
        first = cluster.offsets(places, dict.fromkeys(places, EARLIEST))
        last = cluster.offsets(places, dict.fromkeys(places, LATEST))
        start = {place: archived.get(place, first[place]) for place in places}
        for place, offset in start.items():
            if offset < first[place]:
                raise QueryError(
                    f"{place[0]}-{place[1]} is archived up to {offset}, but the broker has records from "
                    f"{first[place]} on only: those between are gone"
                )
            if offset > last[place]:
                raise QueryError(
                    f"{place[0]}-{place[1]} is archived up to {offset}, but it ends at {last[place]}: "
                    "the archive is of another topic of that name"
                )
        self._ends[topic] = last
        given = {
            BOOTSTRAP: self.bootstrap,
            "subscribe": topic,
            "includeHeaders": "true",
            "startingOffsets": json.dumps(to_json(start)),
            "endingOffsets": json.dumps(to_json(last)),
        }
        if self.spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true":
            given["pushdown"] = "true"  # without that setting Spark refuses every reader that could
        return self.spark.read.format("headrace").options(**given).load().select(*COLUMNS)

    def _stream(self, topic: str) -> DataFrame:
        given = {
            BOOTSTRAP: self.bootstrap,
            "subscribe": topic,
            "includeHeaders": "true",
            "startingOffsets": json.dumps(to_json(self._ends[topic])) if topic in self._ends else "latest",
            "commitOffsets": "false",
        }
        return self.spark.readStream.format("headrace").options(**given).load().select(*COLUMNS)

    # values

    def _decoded(self, topic: str, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        kind = self._kinds.get(topic)
        if kind is None and not self.raw:  # a topic that had nothing to guess from may have something by now
            kind = self.schemas.get(topic) or self._guess(topic)
        self._kinds[topic] = kind
        if self.raw:
            return frame
        texts = frame.withColumn("key", f.col("key").cast("string")).withColumn("value", f.col("value").cast("string"))
        if not kind:
            return texts
        parsed = texts.withColumn("data", f.from_json("value", kind))
        taken = {name.lower() for name in (*COLUMNS, "data")}
        data: Any = parsed.schema["data"].dataType
        fields = [each for each in data.fieldNames() if each.lower() not in taken]
        return parsed.select(*(f.col(f"data.`{each}`").alias(each) for each in fields), *COLUMNS, "data")

    def _guess(self, topic: str) -> str | None:
        shape = shape_of(list(self._sample(topic)) or self._archived_sample(topic), most=True)
        return ddl_of(shape) if shape else None

    def _sample(self, topic: str) -> Iterator[bytes | None]:
        """The newest values, read here and not by Spark: it takes milliseconds. What goes meanwhile is not missed."""
        import pyarrow as pa

        from headrace.spark.fetch import Fetcher
        from headrace.spark.task import Task

        options = replace(self._options(topic), fail_on_data_loss=False)
        cluster = Cluster(options)
        try:
            places = cluster.partitions(options.subscription)
            first = cluster.offsets(places, dict.fromkeys(places, EARLIEST))
            last = cluster.offsets(places, dict.fromkeys(places, LATEST))
        except MissingError:
            return
        for place, partition in places.items():
            start = max(first[place], last[place] - SAMPLE)
            if start < last[place]:
                task = Task(*place, start, last[place], *partition)
                for batch in Fetcher(task, pa.schema([pa.field("value", pa.binary())]), options).batches():
                    yield from batch.column("value").to_pylist()

    def _archived_sample(self, topic: str) -> list[bytes | None]:
        """For a topic of which the broker has nothing any more: values of its archive, from the newest days."""
        path = self._archive(topic)
        if not path:
            return []
        from headrace.spark.lake.reading import newest_values

        return newest_values(path, topic, SAMPLE)


def relations(spark: SparkSession, statement: str) -> list[str]:
    """Names that a statement reads from; parts of one name are parted by ", ". Raises QueryError if it is not SQL."""
    session: Any = spark
    with sentences():
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(statement.strip().rstrip(";"))
    text = str(plan.toString())
    own = {name.strip() for line in re.findall(r"CTE \[([^\]]*)\]", text) for name in line.split(",")}
    found = re.findall(r"'UnresolvedRelation \[([^\]]+)\]", text)
    return [name for name in dict.fromkeys(found) if name not in own]


def _only_chooses(frame: DataFrame) -> bool:
    """Whether a streaming frame only picks and computes rows: no aggregate, join, sort or limit."""
    inner: Any = frame
    plan = str(inner._jdf.queryExecution().analyzed().toString())
    return not re.search(
        r"^[\s:+|~-]*(Aggregate|Join|Sort|GlobalLimit|LocalLimit|Distinct|Window|Deduplicate|Union)\b", plan, re.M
    )


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """What Spark says, in one line, as a QueryError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise QueryError(_told(error)) from None


def _told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("JVM")]
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"\s*SQLSTATE: \w+;?", "", re.sub(r"^\[[\w.]+\]\s*", "", text)).strip()
