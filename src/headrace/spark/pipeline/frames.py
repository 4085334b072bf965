"""A pipeline as DataFrames: sources decoded, transformations applied, one frame per view.

Rules:
- Views are made in the order of the file; each step sees the views before it.
- A record that does not decode is an error, is left out, or goes to the dead-letter sink with its reason and its bytes:
  as `on_error` says. A tombstone (no value) is not an error: all its fields are null. How values decode is the business
  of `headrace.spark.values`.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError
from headrace.spark.pipeline.config import Decode, Pipeline, Source, Step, TableSource, TopicSource, Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKUP_KEY: Final = "_key"  # what a lookup topic is joined by
OWN: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")


class Frames:
    """The views of a pipeline. `views` by name; `bad` holds what did not decode, by source."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        folder: Path,
        *,
        query: str = "",
        register: bool = True,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._folder = folder
        self._query = query  # each query has groups of its own: it has its own progress
        self._register = register  # declarative pipelines do not allow views to be registered
        self.views: dict[str, DataFrame] = {}
        self.bad: dict[str, DataFrame] = {}
        for name, source in pipeline.sources.items():
            self._add(name, self._source(name, source))
        for step in pipeline.transform:
            self._add(step.name, self._step(step))

    def _add(self, name: str, frame: DataFrame) -> None:
        self.views[name] = frame
        if self._register:
            frame.createOrReplaceTempView(name)

    # sources

    def _source(self, name: str, source: Source) -> DataFrame:
        if isinstance(source, TableSource):
            frame = self._table(source)
        else:
            frame = self._decoded(name, source)
        return _watermarked(frame, source.watermark, name) if frame.isStreaming else frame

    def _table(self, source: TableSource) -> DataFrame:
        path = place(self._folder, source.path)
        if not source.stream:
            return self._spark.read.format("headracelake").load(path)
        reader = self._spark.readStream.format("headracelake")
        if source.max_per_batch is not None:
            reader = reader.option("maxRowsPerTrigger", str(source.max_per_batch))
        return reader.load(path)

    def _topic(self, name: str, source: TopicSource) -> DataFrame:
        streaming = not source.static
        given = source_options(self._pipeline, name, source, self._query, streaming=streaming)
        given["includeHeaders"] = "true"
        reader: Any = self._spark.readStream if streaming else self._spark.read
        frame: DataFrame = reader.format("headrace").options(**given).load()
        return frame

    def _decoded(self, name: str, source: TopicSource) -> DataFrame:
        from pyspark.sql import functions as f

        frame = self._topic(name, source)
        if source.latest_by_key:
            # Offsets say what is newest within a partition. A key that has moved, as its topic has more partitions
            # now, is in two of them: there the time says it.
            for keys, age in (
                (["topic", "key", "partition"], ["offset"]),
                (["topic", "key"], ["timestamp", "partition"]),
            ):
                newest = f.max_by(f.struct("*"), f.struct(*age)).alias("row")
                frame = frame.groupBy(*keys).agg(newest).select("row.*")
            frame = frame.where("value is not null")
            frame = frame.withColumn(LOOKUP_KEY, f.col("key").cast("string"))
        decode = source.decode
        return frame if decode is None else self._typed(name, frame, decode, latest=source.latest_by_key)

    def _typed(self, name: str, frame: DataFrame, decode: Decode, *, latest: bool) -> DataFrame:
        from pyspark.sql import functions as f

        from headrace.spark.values import decode as to_columns

        typed = decode.value not in ("text", "binary", "variant")
        keep = [each for each in OWN if each in decode.keep] + ([LOOKUP_KEY] if latest else [])
        found = to_columns(
            frame,
            decode.value,
            self._schema(decode) if typed else None,
            message=decode.message,
            on_error=decode.on_error,
            nulls="keep",
            keep=keep,
        )
        if decode.on_error == "dlq":
            self.bad[name] = found.bad
        good = found.good
        for own in ("key", "record_key"):  # keys are mostly words
            if own in good.columns and dict(good.dtypes)[own] == "binary" and decode.value != "binary":
                good = good.withColumn(own, f.col(own).cast("string"))
        return good

    def _schema(self, decode: Decode) -> Any:
        text = decode.schema.strip()
        path = self._folder / text
        if decode.value == "json" and (" " in text or not path.is_file()):
            return text
        if not path.is_file():
            raise ConfigError(f"decode.schema: there is no file {path}")
        return path

    # transformations

    def _step(self, step: Step) -> DataFrame:
        from pyspark.errors import PySparkException

        if step.python:
            return self._python(step)
        if step.dedup is not None:
            frame = self.views[step.dedup.view]
            if not frame.isStreaming:
                return frame.dropDuplicates(step.dedup.by)
            return frame.dropDuplicatesWithinWatermark(step.dedup.by)
        text = step.sql
        if text.strip().endswith(".sql"):
            text = read_text(self._folder, text.strip(), f"transform.{step.name}")
        try:
            text = text.strip().rstrip(";")
            return self._spark.sql(text) if self._register else self._woven(text)
        except PySparkException as error:
            raise ConfigError(f"transform.{step.name}: {first_line(error)}") from None

    def _woven(self, text: str) -> DataFrame:
        """SQL over frames that have no registered names: they go along with the statement."""
        used: dict[str, Any] = {name: frame for name, frame in self.views.items() if re.search(rf"\b{name}\b", text)}
        marked = text.replace("{", "{{").replace("}", "}}")
        for name in used:
            marked = re.sub(
                rf"(\b(?:from|join|,)\s+)`?{name}`?(?![\w.])", rf"\1{{{name}}} as {name}", marked, flags=re.I
            )
        return self._spark.sql(marked, **used)

    def _python(self, step: Step) -> DataFrame:
        path = self._folder / step.python
        spec = importlib.util.spec_from_file_location(f"headrace_step_{step.name}", path)
        if spec is None or spec.loader is None or not path.exists():
            raise ConfigError(f"transform.{step.name}: there is no {path}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, "transform", None)
        if not callable(function):
            raise ConfigError(f"transform.{step.name}: {path} has no function transform(spark, views)")
        frame: DataFrame = function(self._spark, dict(self.views))
        return frame


def source_options(
    pipeline: Pipeline, name: str, source: TopicSource, query: str, *, streaming: bool = True
) -> dict[str, str]:
    """The options of `format("headrace")` for a source of one query."""
    found: dict[str, str] = {"kafka.bootstrap.servers": pipeline.broker}
    if source.pattern:
        found["subscribePattern"] = f"^(?:{source.pattern})$"  # whole names
    else:
        found["subscribe"] = ",".join(source.topics or [source.topic])
    if streaming:
        found["startingOffsets"] = source.start
        found["kafka.group.id"] = f"{source.group or f'pipeline-{pipeline.name}'}-{name}-{query}"
        if source.max_per_batch is not None:
            found["maxOffsetsPerTrigger"] = str(source.max_per_batch)
    for key, value in source.options.items():
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def place(folder: Path, path: str) -> str:
    """A path of the file, from the folder; URIs stay."""
    return path if "://" in path else str((folder / Path(path).expanduser()).resolve())


def read_text(folder: Path, name: str, what: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{what}: cannot read {folder / name}: {(error.strerror or str(error)).lower()}") from None


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _watermarked(frame: DataFrame, watermark: Watermark | None, name: str) -> DataFrame:
    if watermark is None:
        return frame
    kinds = dict(frame.dtypes)
    if watermark.column not in kinds:
        raise ConfigError(f"sources.{name}.watermark: there is no column {watermark.column!r}")
    if kinds[watermark.column] != "timestamp":
        raise ConfigError(f"sources.{name}.watermark: {watermark.column} is {kinds[watermark.column]}, not timestamp")
    return frame.withWatermark(watermark.column, watermark.delay)
