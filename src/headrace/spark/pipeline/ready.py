"""Ready-made pipelines. Each is an ordinary pipeline folder that a command fills in: read it, change it, run it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.core.errors import ConfigError
from headrace.spark.pipeline.config import FILE, interval, load, parse

_SPARK_INTERVAL: Final = re.compile(r"\d+ \w+\Z")
_HEAD: Final = "# {title}\n# Run it:  headrace pipeline run {folder}\n"

EXAMPLE: Final = """\
# Orders, summed up by the minute. Try it:
#   headrace serve --memory &
#   for i in 1 2 3 4 5; do echo '{"id": '$i', "amount": 9.5, "at": "'$(date -u +%FT%TZ)'"}'; done \\
#     | headrace produce orders
#   headrace pipeline check {folder}
#   headrace pipeline run {folder} --once
#   headrace consume orders-clean --from-beginning
name: {name}
broker: ${HEADRACE_BOOTSTRAP:-127.0.0.1:9092}
sources:
  orders:
    topic: orders
    start: earliest
    decode:
      value: json
      schema: id long, amount double, at timestamp
      on_error: dlq             # fail, skip, or dlq: broken records go to a topic, with the reason in their headers
      dlq: orders-broken
    watermark: {column: at, delay: 1 minute}
# Files in transformations/ are views, in the order of their names: 10_clean.sql is the view "clean".
sinks:
  - {type: topic, from: clean, topic: orders-clean, key: id, delivery: exactly_once}
  - {type: table, from: per_minute, path: lake/orders_per_minute}
  - {type: archive, from: orders, path: lake/orders}
checkpoint: checkpoint
trigger: {interval: 10s}
spark: {master: "local[*]"}
"""
CLEAN: Final = "select id, amount, at from orders where amount > 0\n"
PER_MINUTE: Final = """\
select window.start as minute, count(*) as orders, sum(amount) as revenue
from clean
group by window(at, '1 minute')
"""


def example(folder: Path, name: str = "") -> None:
    """Write a working example."""
    name = name or re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name)
    text = EXAMPLE.replace("{name}", name).replace("{folder}", str(folder))
    _write(folder, {FILE: text, "transformations/10_clean.sql": CLEAN, "transformations/20_per_minute.sql": PER_MINUTE})
    load(folder, {})


def archive(topics: Sequence[str], path: str, *, broker: str, name: str, schema: str = "") -> dict[str, Any]:
    """Topics into a Delta table, record by record."""
    sink = {"type": "archive", "from": "records", "path": str(path), **({"schema": schema} if schema else {})}
    return _document(name, broker, {"records": {"topics": list(topics)}}, [], [sink], interval_="10s")


def rollup(
    topic: str,
    *,
    schema: str,
    time: str,
    window: str,
    delay: str,
    by: Sequence[str],
    measures: Sequence[str],
    broker: str,
    name: str,
    to_topic: str = "",
    to_table: str = "",
    dlq: str = "",
) -> dict[str, Any]:
    """Windowed aggregates over event time."""
    source = {
        "topic": topic,
        "decode": _decode(schema, dlq),
        "watermark": {"column": time, "delay": _spark_interval(delay)},
    }
    groups = "".join(f"`{each}`, " for each in by)
    sql = (
        f"select window.start as window_start, window.end as window_end, {groups}{', '.join(measures)}\n"
        f"from records\ngroup by {groups}window(`{time}`, '{_spark_interval(window)}')"
    )
    sinks = _sinks("rollup", to_topic, to_table, key=by[0] if by else "window_start")
    return _document(name, broker, {"records": source}, [{"name": "rollup", "sql": sql}], sinks)


def enrich(
    topic: str,
    *,
    schema: str,
    lookup_topic: str = "",
    lookup_schema: str = "",
    lookup_table: str = "",
    on: str,
    broker: str,
    name: str,
    to_topic: str = "",
    to_table: str = "",
    key: str = "",
    dlq: str = "",
) -> dict[str, Any]:
    """A stream joined with a table or with the newest record per key of a (compacted) topic."""
    if bool(lookup_topic) == bool(lookup_table):
        raise ConfigError("give a lookup topic or a lookup table")
    if lookup_topic:
        lookup: dict[str, Any] = {
            "topic": lookup_topic,
            "static": True,
            "latest_by_key": True,
            "decode": {"schema": lookup_schema, "on_error": "skip", "keep": []},
        }
    else:
        lookup = {"type": "table", "path": lookup_table}
    left, _, right = (each.strip() for each in on.partition("="))
    right = right or ("_key" if lookup_topic else left)
    columns = "lookup.* except (_key)" if lookup_topic else "lookup.*"
    if left == right:  # the same name on both sides: one column
        sql = f"select * from records left join lookup using (`{left}`)"
    else:
        sql = (
            f"select records.*, {columns}\nfrom records\n"
            f"left join lookup on cast(records.`{left}` as string) = cast(lookup.`{right}` as string)"
        )
    stream = {"topic": topic, "decode": {**_decode(schema, dlq), "keep": []}}
    sources = {"records": stream, "lookup": lookup}
    sinks = _sinks("enriched", to_topic, to_table, key=key or left)
    return _document(name, broker, sources, [{"name": "enriched", "sql": sql}], sinks)


def dedup(topic: str, to_topic: str, *, id_path: str, delay: str, broker: str, name: str) -> dict[str, Any]:
    """The first record of every message id within some time, with key, value and headers as they were."""
    if id_path == "key":
        message_id = "cast(key as string)"
    elif id_path.startswith("header:"):
        wanted = id_path.removeprefix("header:").replace("'", "")
        message_id = f"cast(filter(headers, h -> h.key = '{wanted}')[0].value as string)"
    else:
        path = id_path if id_path.startswith("$") else f"$.{id_path}"
        message_id = f"get_json_object(cast(value as string), '{path}')"
    # A record without an id is like no other.
    sql = f"select *, coalesce({message_id}, concat(topic, '/', partition, '/', offset)) as message_id from records"
    source = {"topic": topic, "watermark": {"column": "timestamp", "delay": _spark_interval(delay)}}
    steps: list[dict[str, Any]] = [
        {"name": "identified", "sql": sql},
        {"name": "once", "dedup": {"from": "identified", "by": ["message_id"]}},
    ]
    return _document(name, broker, {"records": source}, steps, [{"type": "topic", "from": "once", "topic": to_topic}])


def save(folder: Path, document: dict[str, Any], title: str) -> bool:
    """Write a folder; False if it is there already and says the same. Raises ConfigError if it says something else."""
    parse(yaml.safe_load(yaml.safe_dump(document)))
    path = folder / FILE
    if path.exists():
        if yaml.safe_load(path.read_text(encoding="utf-8")) == document:
            return False
        raise ConfigError(f"{path} exists and says something else; change it there, or choose another --folder")
    _write(folder, {FILE: _HEAD.format(title=title, folder=folder) + text_of(document)})
    return True


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def text_of(document: dict[str, Any]) -> str:
    """A document as YAML for people."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


def _document(
    name: str,
    broker: str,
    sources: dict[str, Any],
    steps: list[dict[str, Any]],
    sinks: list[dict[str, Any]],
    interval_: str = "",
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "broker": broker, "sources": sources}
    if steps:
        found["transform"] = steps
    found["sinks"] = sinks
    if interval_:
        found["trigger"] = {"interval": interval_}
    return found


def _decode(schema: str, dlq: str) -> dict[str, str]:
    return {"schema": schema, **({"on_error": "dlq", "dlq": dlq} if dlq else {"on_error": "skip"})}


def _sinks(view: str, to_topic: str, to_table: str, *, key: str) -> list[dict[str, Any]]:
    if not to_topic and not to_table:
        raise ConfigError("give --to-topic or --to-table, or both")
    found: list[dict[str, Any]] = []
    if to_topic:
        found.append({"type": "topic", "from": view, "topic": to_topic, "key": key})
    if to_table:
        found.append({"type": "table", "from": view, "path": to_table})
    return found


def _spark_interval(text: str) -> str:
    return text if _SPARK_INTERVAL.match(text) else interval(text)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name in files:
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} exists already")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
