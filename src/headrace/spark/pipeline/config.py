"""`pipeline.yml`: what a pipeline reads, how it decodes and transforms, and where the results go.

Rules:
- Every key is typed; an unknown key, a wrong type or a contradiction is one sentence that names the key.
- Paths are relative to the pipeline's folder. `${NAME}` stands for an environment variable, `${NAME:-word}` with a
  default.
- Nothing here touches Spark or a broker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml

from headrace.core.config import suggestion
from headrace.core.errors import ConfigError

FILE: Final = "pipeline.yml"
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")
VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h)\Z")
_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}

Delivery = Literal["exactly_once", "exactly_once_partitioned", "at_least_once"]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of the file."""


class Decode(Part, frozen=True, kw_only=True):
    """What values are. Fields become columns; what is kept of the record is record_<name> if a field has its name."""

    value: Literal["json", "avro", "protobuf", "text", "binary", "variant"] = "json"
    schema: str = ""  # JSON: Spark's DDL, or a file; Avro and Protobuf: a file
    message: str = ""  # Protobuf: which one
    keep: tuple[str, ...] = ("key", "topic", "partition", "offset", "timestamp")
    on_error: Literal["fail", "skip", "dlq"] = "fail"
    dlq: str = ""  # a topic
    dlq_table: str = ""  # or a table


class Watermark(Part, frozen=True, kw_only=True):
    """How late rows may be."""

    column: str
    delay: str


class TopicSource(Part, frozen=True, kw_only=True, tag="topic", tag_field="type"):
    """A stream of one or more topics, or (`static`) a table of what they hold when a batch runs."""

    topic: str = ""
    topics: list[str] = []
    pattern: str = ""
    start: str = "earliest"
    max_per_batch: int | None = None
    group: str = ""
    decode: Decode | None = None
    watermark: Watermark | None = None
    static: bool = False
    latest_by_key: bool = False  # static only: the last record of every key, without tombstones
    options: dict[str, str | int | bool] = {}


class TableSource(Part, frozen=True, kw_only=True, tag="table", tag_field="type"):
    """A Delta table: what it holds when a batch runs, or (`stream`) its rows, some at a time."""

    path: str
    stream: bool = False
    max_per_batch: int | None = None
    watermark: Watermark | None = None


class Dedup(Part, frozen=True, kw_only=True):
    """The first row of every `by` within the watermark of view `from`."""

    view: str = msgspec.field(name="from")
    by: list[str]


class Step(Part, frozen=True, kw_only=True):
    """A transformation: SQL (or a file *.sql), a Python file with `transform(spark, views)`, or `dedup`."""

    name: str
    sql: str = ""
    python: str = ""
    dedup: Dedup | None = None


class TopicSink(Part, frozen=True, kw_only=True, tag="topic", tag_field="type"):
    """Rows into a topic. Rows without a column `value` become JSON; `key` names the column of the key."""

    view: str = msgspec.field(name="from")
    topic: str
    name: str = ""
    key: str = ""
    mode: Literal["append", "update", "complete"] = "append"
    delivery: Delivery = "exactly_once"
    options: dict[str, str | int | bool] = {}


class TableSink(Part, frozen=True, kw_only=True, tag="table", tag_field="type"):
    """Rows into a Delta table."""

    view: str = msgspec.field(name="from")
    path: str
    name: str = ""
    partition_by: list[str] = []


class ArchiveSink(Part, frozen=True, kw_only=True, tag="archive", tag_field="type"):
    """The records of a topic source as they are into a Delta table; they never enter the JVM."""

    view: str = msgspec.field(name="from")
    path: str
    name: str = ""
    value: Literal["json", "avro", "protobuf"] = "json"
    schema: str = ""  # for typed columns beside the raw ones. JSON: Spark's DDL; Avro and Protobuf: a file
    message: str = ""  # Protobuf: which one
    compact_after: int = 64  # small files of one day; then they are joined, between two batches. 0: never


class ConsoleSink(Part, frozen=True, kw_only=True, tag="console", tag_field="type"):
    """Rows onto the terminal."""

    view: str = msgspec.field(name="from")
    name: str = ""
    mode: Literal["append", "update", "complete"] = "append"
    rows: int = 20


class Trigger(Part, frozen=True, kw_only=True):
    """When batches run: one after the other, every `interval`, or (`once`) until what is there is done."""

    interval: str = ""
    once: bool = False


class SparkSettings(Part, frozen=True, kw_only=True):
    master: str = "local[*]"
    conf: dict[str, str | int | bool] = {}


Source = TopicSource | TableSource
Sink = TopicSink | TableSink | ArchiveSink | ConsoleSink


class Pipeline(Part, frozen=True, kw_only=True):
    """The whole file."""

    name: str
    broker: str = ""
    sources: dict[str, Source]
    transform: list[Step] = []
    sinks: list[Sink]
    checkpoint: str = "checkpoint"
    trigger: Trigger = Trigger()
    restarts: int = 6
    spark: SparkSettings = SparkSettings()


def load(folder: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Pipeline:
    """Read a pipeline's folder (or its file). Raises ConfigError."""
    path = Path(folder)
    path = path if path.is_file() else path / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read {path}: {reason}; headrace pipeline init makes an example") from None
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path} is not YAML{where}: {getattr(error, 'problem', error)}") from None
    return parse(_expanded(document, environ if environ is not None else os.environ, str(path)), str(path), path.parent)


def parse(document: Any, where: str = FILE, folder: Path | None = None) -> Pipeline:
    """A document as a pipeline, checked. Transformations in the folder are added if the file names none."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where} must be a mapping with name, sources and sinks")
    for source in (document.get("sources") or {}).values() if isinstance(document.get("sources"), dict) else ():
        if isinstance(source, dict):
            source.setdefault("type", "topic")
    try:
        found = msgspec.convert(document, Pipeline)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_told(str(error))}") from None
    if not found.transform and folder is not None:
        found = msgspec.structs.replace(found, transform=_found_steps(folder))
    found = msgspec.structs.replace(found, sinks=_named(found.sinks))
    for sentence in _faults(found):
        raise ConfigError(f"{where}: {sentence}")
    return found


def to_document(pipeline: Pipeline) -> dict[str, Any]:
    """A pipeline as it would stand in a file, without what is default."""
    found: dict[str, Any] = msgspec.to_builtins(pipeline)
    return _thin(found, msgspec.to_builtins(Pipeline(name="", sources={}, sinks=[])))


def interval(text: str) -> str:
    """`10s` in Spark's words."""
    found = _DURATION.match(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a duration such as 500ms, 10s, 5m or 1h")
    return f"{found[1]} {_WORDS[found[2]]}"


def _thin(document: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in document.items() if key not in defaults or value != defaults[key]}
    empty: tuple[Any, ...] = ("", [], {}, None, False)

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items() if item not in empty}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return {key: clean(value) for key, value in kept.items()}


def _found_steps(folder: Path) -> list[Step]:
    """`transformations/10_clean.sql` is the view `clean`; files come in the order of their names."""
    steps = []
    for path in sorted((folder / "transformations").glob("*")):
        name = re.sub(r"^\d+[_-]", "", path.stem).replace("-", "_")
        relative = str(path.relative_to(folder))
        if path.suffix == ".sql":
            steps.append(Step(name=name, sql=relative))
        elif path.suffix == ".py" and not path.name.startswith("_"):
            steps.append(Step(name=name, python=relative))
    return steps


def _named(sinks: Iterable[Sink]) -> list[Sink]:
    named = []
    for sink in sinks:
        kind = str(sink.__struct_config__.tag)
        named.append(sink if sink.name else msgspec.structs.replace(sink, name=f"{sink.view}-{kind}"))
    return named


def _faults(pipeline: Pipeline) -> Iterable[str]:
    if not NAME.match(pipeline.name):
        yield f"name {pipeline.name!r} must be letters, digits, - and _, and begin with a letter"
    if not pipeline.sources:
        yield "there is no source"
    if not pipeline.sinks:
        yield "there is no sink"
    for name, source in pipeline.sources.items():
        yield from (f"sources.{name}: {each}" for each in _source_faults(name, source, pipeline))
    known = [*pipeline.sources]
    for step in pipeline.transform:
        if not VIEW.match(step.name):
            yield f"transform: {step.name!r} cannot be a view's name"
        if sum(map(bool, (step.sql, step.python, step.dedup is not None))) != 1:
            yield f"transform.{step.name}: give one of sql, python and dedup"
        if step.dedup is not None and step.dedup.view not in known:
            yield f"transform.{step.name}: there is no view {step.dedup.view!r}{suggestion(step.dedup.view, known)}"
        if step.name in known:
            yield f"transform: there are two views called {step.name!r}"
        known.append(step.name)
    names: set[str] = set()
    for sink in pipeline.sinks:
        if sink.view not in known:
            yield f"sink {sink.name}: there is no view {sink.view!r}{suggestion(sink.view, known)}"
        if sink.name in names:
            yield f"two sinks are called {sink.name!r}; give one a name"
        names.add(sink.name)
        if isinstance(sink, ArchiveSink) and sink.value != "json" and not sink.schema:
            yield f"sink {sink.name}: value {sink.value} needs a schema: a file"
        if isinstance(sink, ArchiveSink) and (sink.compact_after < 0 or sink.compact_after == 1):
            yield f"sink {sink.name}: compact_after is 0 or a number of files from 2 on"
        if isinstance(sink, ArchiveSink) and not isinstance(pipeline.sources.get(sink.view), TopicSource):
            yield f"sink {sink.name}: an archive is made from a topic source, not from {sink.view!r}"
    if pipeline.trigger.once and pipeline.trigger.interval:
        yield "trigger: give once or interval"
    if pipeline.trigger.interval and not _DURATION.match(pipeline.trigger.interval):
        yield f"trigger.interval {pipeline.trigger.interval!r} is not a duration such as 500ms, 10s, 5m or 1h"


def _source_faults(name: str, source: Source, pipeline: Pipeline) -> Iterable[str]:
    if not VIEW.match(name):
        yield f"{name!r} cannot be a view's name"
    if isinstance(source, TableSource):
        return
    if sum(map(bool, (source.topic, source.topics, source.pattern))) != 1:
        yield "give one of topic, topics and pattern"
    if not pipeline.broker:
        yield "a topic needs the broker's address: broker: host:port"
    decode = source.decode
    if decode is not None:
        typed = decode.value in ("json", "avro", "protobuf")
        if typed and not decode.schema:
            yield "decode.schema is missing: a file, or for JSON the fields as 'id long, name string'"
        if not typed and decode.schema:
            yield f"decode.value {decode.value} has no schema"
        for each in decode.keep:
            if each not in ("key", "topic", "partition", "offset", "timestamp", "headers"):
                yield f"decode.keep: a record has no {each!r}"
        if (decode.on_error == "dlq") != bool(decode.dlq or decode.dlq_table):
            yield "decode: on_error dlq goes with dlq (a topic) or dlq_table"
        elif decode.dlq and decode.dlq_table:
            yield "decode: give dlq (a topic) or dlq_table, not both"
        if decode.on_error == "dlq" and source.static:
            yield "decode: a static topic is read again for every batch and has no dead letters; use fail or skip"
    if source.latest_by_key and not source.static:
        yield "latest_by_key goes with static: true"


def _told(message: str) -> str:
    """msgspec's sentence in ours."""
    text, _, path = message.partition(" - at ")
    where = path.strip("`").removeprefix("$").removeprefix(".").replace("[...]", " (one of them)")
    found = re.match(r"Object contains unknown field `(.+)`", text)
    if found:
        known = {name for each in _PARTS for name in (field.encode_name for field in msgspec.structs.fields(each))}
        return f"unknown key {found[1]!r}" + (f" in {where}" if where else "") + suggestion(found[1], known)
    found = re.match(r"Object missing required field `(.+)`", text)
    if found:
        return f"{found[1]} is missing" + (f" in {where}" if where else "")
    found = re.match(r"Invalid (?:enum )?value '(.+)'", text)
    if found and (allowed := _allowed(where)):
        return f"{where}: {found[1]!r} is not one of {', '.join(allowed)}{suggestion(found[1], allowed)}"
    text = re.sub(r"`([^`]*)`", r"\1", text)
    return f"{where}: {text[:1].lower()}{text[1:]}" if where else f"{text[:1].lower()}{text[1:]}"


def _allowed(where: str) -> list[str]:
    """The words that may stand at this place."""
    name = where.rpartition(".")[2]
    if name == "type":
        kinds = (TopicSource, TableSource) if where.startswith("sources") else _SINKS
        return [str(kind.__struct_config__.tag) for kind in kinds]
    if where.startswith("sinks") and name == "value":
        return list(get_args(get_type_hints(ArchiveSink)["value"]))
    hints = (get_type_hints(part).get(name) for part in _PARTS)
    return next((list(get_args(hint)) for hint in hints if get_origin(hint) is Literal), [])


_SINKS: Final = (TopicSink, TableSink, ArchiveSink, ConsoleSink)
_PARTS: Final = (
    Pipeline, Decode, Watermark, TopicSource, TableSource, Step, Dedup, TopicSink, TableSink, ArchiveSink, ConsoleSink,
    Trigger, SparkSettings,
)  # fmt: skip


def _expanded(value: Any, environ: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(item, environ, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, environ, where) for item in value]
    if not isinstance(value, str):
        return value

    def look_up(found: re.Match[str]) -> str:
        word = environ.get(found[1], found[2])
        if word is None:
            raise ConfigError(f"{where}: the environment has no {found[1]}; ${{{found[1]}:-word}} gives a default")
        return word

    return _VARIABLE.sub(look_up, value)
