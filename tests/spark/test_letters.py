"""Dead letters: with their batch and once, whatever fails; then looked at and sent again, once."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("deltalake")

import pyarrow as pa

from headrace.cli import run as command
from headrace.client import Connection
from headrace.core.errors import ConfigError
from headrace.spark.lake import Table, arrow_table
from headrace.spark.pipeline import letters as box
from headrace.spark.pipeline import runner, sinks
from headrace.spark.pipeline.config import load, parse
from headrace.spark.pipeline.letters import DeadLetters
from headrace.spark.pipeline.lineage import couriers
from headrace.spark.pipeline.runner import Runner

pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verbs wait five seconds for an answer: enough for people, not for a busy machine."""
    monkeypatch.setattr(box, "Connection", partial(Connection, timeout_s=60))


def document(kafka: Any, topic: str, sink: dict[str, Any], **decode: str) -> dict[str, Any]:
    return {
        "name": "letters",
        "broker": kafka.bootstrap,
        "sources": {"orders": {"topic": topic, "decode": {"schema": "id long", "on_error": "dlq", **decode}}},
        "sinks": [sink],
    }


def save(folder: Path, content: dict[str, Any]) -> None:
    (folder / "pipeline.yml").write_text(yaml.safe_dump(content))


def run(spark: Any, folder: Path) -> None:
    Runner(load(folder), folder, spark, once=True).run()


def committed(kafka: Any, prefix: str) -> dict[str, int]:
    """What marker groups have committed, by topic."""
    groups = [each.group_id for each in kafka.admin.list_consumer_groups().result(60).valid]
    found: dict[str, int] = {}
    for name in (each for each in groups if each.startswith(prefix)):
        found |= {topic: offset for (topic, _), offset in kafka.marked(name).items()}
    return found


def test_rows_and_letters_share_a_transaction_and_mended_letters_are_decoded(
    spark: Any, kafka: Any, tmp_path: Path
) -> None:
    topic, out, dead = kafka.topic(), kafka.topic(), kafka.topic()
    content = document(kafka, topic, {"type": "topic", "from": "orders", "topic": out, "key": "id"}, dlq=dead)
    save(tmp_path, content)
    kafka.produce(topic, [b'{"id": 1}', {"value": b'{"id": "two"}', "key": b"k", "headers": {"h": b"1"}}, b'{"id": 3}'])
    run(spark, tmp_path)
    assert [row[0] for row in kafka.rows(out)] == [b"1", b"3"]
    [letter] = kafka.rows(dead)
    assert letter[:2] == (b"k", b'{"id": "two"}')
    assert ("h", b"1") in letter[7] and ("headrace.offset", b"1") in letter[7]
    markers = committed(kafka, "headrace-spark-")
    assert (markers[out], markers[dead]) == (1, 1)  # one batch, in both topics

    content["sources"]["orders"]["decode"]["schema"] = "id string"
    save(tmp_path, content)
    assert DeadLetters(load(tmp_path), tmp_path).replay() == {topic: 1}
    assert DeadLetters(load(tmp_path), tmp_path).replay() == {}
    assert kafka.rows(topic)[-1][:2] == (b"k", b'{"id": "two"}') and kafka.rows(topic)[-1][7] == (("h", b"1"),)
    run(spark, tmp_path)
    assert [row[0] for row in kafka.rows(out)] == [b"1", b"3", b"two"]
    assert len(kafka.rows(dead)) == 1


def test_a_table_and_its_letters_take_a_batch_once_when_it_fails_between_them(
    spark: Any, kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = kafka.topic(), kafka.topic()
    save(tmp_path, document(kafka, topic, {"type": "table", "from": "orders", "path": "rows"}, dlq=dead))
    kafka.produce(topic, [b'{"id": 1}', b"x", b'{"id": 2}'])
    real = sinks._write
    written: list[str] = []

    def failing(rows: Any, target: Any, *more: Any) -> None:
        real(rows, target, *more)
        written.append(target.name)
        if len(written) in (1, 3):  # after the rows, and, when the batch is repeated, after the letters
            raise OSError("pulled the plug")

    monkeypatch.setattr(sinks, "_write", failing)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.1)
    run(spark, tmp_path)  # which starts the query again, twice
    assert written == ["orders-table", *["orders-table", "orders-dlq"] * 2]
    assert sorted(row["id"] for row in arrow_table(tmp_path / "rows").to_pylist()) == [1, 2]
    assert [row[1] for row in kafka.rows(dead)] == [b"x"]


def test_sums_are_updated_and_letters_put_into_a_table_once(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic, out = kafka.topic(), kafka.topic()
    sink = {"type": "topic", "from": "sums", "topic": out, "key": "id", "mode": "update"}
    content = document(kafka, topic, sink, dlq_table="dead")
    content["transform"] = [{"name": "sums", "sql": "select id, count(*) as n from orders group by id"}]
    save(tmp_path, content)
    kafka.produce(topic, [b'{"id": 1}', b"x", b'{"id": 1}'])
    run(spark, tmp_path)
    kafka.produce(topic, [b'{"id": 1}', b"y"])
    run(spark, tmp_path)
    assert [json.loads(row[1]) for row in kafka.rows(out)] == [{"id": 1, "n": 2}, {"id": 1, "n": 3}]
    dead = arrow_table(tmp_path / "dead").sort_by("offset").to_pylist()
    assert [(row["offset"], row["value"]) for row in dead] == [(1, b"x"), (4, b"y")]
    letters = DeadLetters(load(tmp_path), tmp_path)
    assert [(each.offset, each.topic) for each in letters.waiting()] == [(1, topic), (4, topic)]


# without Spark


def test_the_verbs_show_and_replay(
    kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, dead, other = kafka.topic(), kafka.topic(2), kafka.topic()
    content = document(kafka, topic, {"type": "topic", "from": "orders", "topic": "out"}, dlq=dead)
    save(tmp_path, {**content, "name": "verbs"})
    monkeypatch.chdir(tmp_path)
    assert command(["pipeline", "dlq", "show"]) == 0
    assert "no dead letters wait" in capsys.readouterr().err
    for offset, value in enumerate([b"first", b"\xff", b"third"]):
        said = {"own": b"o", "headrace.topic": topic, "headrace.partition": "0", "headrace.offset": str(offset)}
        said |= {"headrace.error": "not JSON", "headrace.timestamp": "2026-01-31 12:00:00"}
        kafka.produce(dead, [{"value": value, "key": b"k", "headers": said}], partition=offset % 2)
    assert command(["pipeline", "dlq", "show", "--limit", "2"]) == 0
    told = capsys.readouterr()
    assert told.out.count("not JSON") == 2 and "more than 2" in told.err
    assert command(["pipeline", "dlq", "replay", "--limit", "1", "--to", other]) == 0
    assert capsys.readouterr().out == f"{other}: 1 replayed\n"
    assert command(["pipeline", "dlq", "show", "--json"]) == 0
    waiting = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(waiting) == 2 and {each["error"] for each in waiting} == {"not JSON"}
    assert command(["pipeline", "dlq", "replay"]) == 0
    assert capsys.readouterr().out == f"{topic}: 2 replayed\n"
    sent = [row[:2] + row[7:] for row in (*kafka.rows(topic), *kafka.rows(other))]
    assert sorted(sent) == [(b"k", value, (("own", b"o"),)) for value in (b"first", b"third", b"\xff")]
    assert command(["pipeline", "dlq", "show"]) == 0
    assert "no dead letters wait" in capsys.readouterr().err
    assert command(["pipeline", "dlq", "show", "--all"]) == 0
    assert capsys.readouterr().out.count("not JSON") == 3
    assert command(["pipeline", "dlq", "show", "--source", "nobody"]) == 2


def test_letters_of_a_table_are_replayed_once(kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    content = document(kafka, topic, {"type": "topic", "from": "orders", "topic": "out"}, dlq_table="dead")
    letters = DeadLetters(parse({**content, "name": "tabled"}), tmp_path)
    assert letters.replay() == {}
    put(tmp_path / "dead", [(topic, 1, 7, b"b"), (topic, 0, 5, b"a")])
    assert letters.replay() == {topic: 2}
    put(tmp_path / "dead", [(topic, 0, 6, b"c"), (topic, 1, 9, b"d")])
    assert [each.value for each in letters.waiting()] == [b"c", b"d"]
    assert letters.replay() == {topic: 2}
    assert sorted(row[1] for row in kafka.rows(topic, 2)) == [b"a", b"b", b"c", b"d"]
    assert len(list(letters.waiting(replayed=True))) == 4


def put(path: Path, rows: list[tuple[str, int, int, bytes]]) -> None:
    from deltalake import write_deltalake

    columns = dict(zip(("topic", "partition", "offset", "value"), zip(*rows, strict=True), strict=True))
    nothing = pa.nulls(len(rows), pa.string())
    table = pa.table({**columns, "key": nothing, "timestamp": nothing, "error": nothing})
    write_deltalake(str(path), table, mode="append")
    assert Table(path).exists()


def sources_of(*sinks: dict[str, Any], steps: list[dict[str, Any]] | None = None) -> dict[str, str]:
    decode = {"schema": "id long", "on_error": "dlq", "dlq": "dead"}
    content = {
        "name": "p",
        "broker": "b:1",
        "sources": {name: {"topic": name, "decode": decode} for name in ("orders", "people")},
        "transform": steps or [],
        "sinks": [{"name": f"s{index}", **each} for index, each in enumerate(sinks)],
    }
    return couriers(parse(content), Path("nowhere"))


def test_the_first_sink_that_comes_from_a_source_and_writes_once_carries_its_letters() -> None:
    topic = {"type": "topic", "topic": "t"}
    table = {"type": "table", "path": "t"}
    assert sources_of({"from": "people", **topic}, {"from": "orders", **topic}, {"from": "orders", **table}) == {
        "people": "s0",
        "orders": "s1",
    }
    joined = [{"name": "both", "sql": "select * from Orders join people using (id)"}]
    assert sources_of({"from": "both", **table}, steps=joined) == {"orders": "s0", "people": "s0"}
    assert sources_of({"from": "orders", "type": "archive", "path": "a"}, {"from": "orders", "type": "console"}) == {}
    assert sources_of({"from": "orders", **topic, "delivery": "at_least_once"}, {"from": "orders", **table}) == {
        "orders": "s1"
    }


def test_a_static_topic_has_no_letters() -> None:
    decode = {"schema": "id long", "on_error": "dlq", "dlq": "dead"}
    content = {
        "name": "p",
        "broker": "b:1",
        "sources": {"a": {"topic": "a", "static": True, "decode": decode}},
        "sinks": [{"type": "topic", "from": "a", "topic": "t"}],
    }
    with pytest.raises(ConfigError, match="a static topic is read again for every batch"):
        parse(content)
