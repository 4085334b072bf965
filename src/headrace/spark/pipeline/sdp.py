"""A pipeline as a Spark Declarative Pipeline: `spark-pipeline.yml` and Python under `transformations/`.

What is the same: sources, decoding, SQL, sinks, exactly-once. What differs, because Spark's runner differs: it runs
once over what is there and ends (no trigger), it keeps checkpoints under its own storage, dead letters have a flow of
their own, and an archive sink becomes a table sink of the raw records, whose rows go through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.core.errors import ConfigError
from headrace.spark.pipeline.config import (
    ArchiveSink,
    ConsoleSink,
    Pipeline,
    Sink,
    TableSink,
    TopicSink,
    TopicSource,
)
from headrace.spark.pipeline.frames import place
from headrace.spark.pipeline.lineage import with_letters
from headrace.spark.pipeline.sinks import letter_target

_FLOW: Final = '''"""Made by `headrace pipeline export-sdp` from {name}."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from headrace.spark.pipeline.sdp import letters, view

HOME = Path({home!r})
spark = SparkSession.active()
'''
_SINK: Final = """

dp.create_sink({name!r}, {kind!r}, {options!r})
# Made here, as Spark allows no look at columns inside of the function.
{function}_rows = {rows}


@dp.append_flow(target={name!r}, name={flow!r})
def {function}():
    return {function}_rows
"""


def export(pipeline: Pipeline, folder: Path, to: Path) -> list[Path]:
    """Write the files; which ones."""
    spec = {
        "name": pipeline.name,
        "storage": (to / "storage").resolve().as_uri(),
        "libraries": [{"glob": {"include": "transformations/**"}}],
        "configuration": {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    }
    flows = _FLOW.format(name=pipeline.name, home=str(folder.resolve())) + "".join(_sinks(pipeline, folder))
    files = {
        to / "spark-pipeline.yml": yaml.safe_dump(spec, sort_keys=False),
        to / "transformations" / "flows.py": flows,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)


def _sinks(pipeline: Pipeline, folder: Path) -> Iterator[str]:
    for sink in pipeline.sinks:
        kind, options = _target(pipeline, folder, sink)
        yield _flow(sink.name, kind, options, f"view(spark, HOME, {sink.view!r}, {sink.name!r})")
    for name in with_letters(pipeline):
        source = pipeline.sources[name]
        assert isinstance(source, TopicSource) and source.decode is not None
        target = letter_target(pipeline, folder, name, source.decode)
        yield _flow(target.name, target.format, dict(target.options), f"letters(spark, HOME, {name!r})")


def _flow(name: str, kind: str, options: dict[str, str], rows: str) -> str:
    word = name.replace("-", "_")
    return _SINK.format(name=word, kind=kind, options=options, flow=f"{word}_flow", function=word, rows=rows)


def _target(pipeline: Pipeline, folder: Path, sink: Sink) -> tuple[str, dict[str, str]]:
    if isinstance(sink, TopicSink):
        if sink.mode != "append":
            raise ConfigError(f"sink {sink.name}: declarative pipelines only append to sinks, not {sink.mode}")
        own = {"kafka.bootstrap.servers": pipeline.broker, "topic": sink.topic, "delivery": sink.delivery}
        return "headrace", {**own, **{name: str(value) for name, value in sink.options.items()}}
    if isinstance(sink, TableSink):
        more = {"partitionBy": ",".join(sink.partition_by)} if sink.partition_by else {}
        return "headracelake", {"path": place(folder, sink.path), **more}
    if isinstance(sink, ArchiveSink):
        return "headracelake", {"path": place(folder, sink.path + "-sdp")}
    assert isinstance(sink, ConsoleSink)
    raise ConfigError(f"sink {sink.name}: declarative pipelines have no console")


def view(spark: Any, folder: Path, name: str, query: str) -> Any:
    """The frame for a sink inside a declarative pipeline: views are woven into one query, none is registered."""
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.frames import Frames
    from headrace.spark.pipeline.sinks import to_topic

    pipeline = load(folder)
    sink = next(each for each in pipeline.sinks if each.name == query)
    frame = Frames(spark, pipeline, folder, query=f"sdp-{query}", register=False).views[name]
    return to_topic(frame, sink) if isinstance(sink, TopicSink) else frame


def letters(spark: Any, folder: Path, source: str) -> Any:
    """The misfits of a source, likewise."""
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.frames import Frames
    from headrace.spark.pipeline.sinks import letter_flow

    pipeline = load(folder)
    found = pipeline.sources[source]
    assert isinstance(found, TopicSource) and found.decode is not None
    bad = Frames(spark, pipeline, folder, query=f"sdp-{source}-dlq", register=False).bad[source]
    return letter_flow(pipeline, folder, source, found.decode, bad).rows
