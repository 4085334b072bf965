"""Pipelines on a real session and a real broker: what goes in comes out, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("deltalake")

from headrace.spark.lake import arrow_table, verify
from headrace.spark.pipeline import ready
from headrace.spark.pipeline.check import before_spark, check
from headrace.spark.pipeline.config import load
from headrace.spark.pipeline.replay import Replay
from headrace.spark.pipeline.runner import PipelineError, Runner
from headrace.spark.pipeline.state import FINISHED, State

Run = Callable[[Path], Runner]


@pytest.fixture
def run(spark: Any) -> Run:
    def once(folder: Path) -> Runner:
        runner = Runner(load(folder), folder, spark, once=True)
        runner.run()
        return runner

    return once


def values(kafka: Any, topic: str) -> list[Any]:
    return [json.loads(row[1]) for row in kafka.rows(topic)]


def order(number: int, minute: int = 0, **fields: Any) -> bytes:
    return json.dumps({"id": number, "amount": 2.5, "at": f"2026-01-31T12:{minute:02d}:00Z", **fields}).encode()


@pytest.mark.basic
def test_the_example_goes_on_exactly_where_it_was(
    spark: Any, kafka: Any, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", kafka.bootstrap)
    source, clean, broken = kafka.topic(), kafka.topic(), kafka.topic()
    folder = tmp_path / "shop"
    ready.example(folder)
    document = yaml.safe_load((folder / "pipeline.yml").read_text())
    document["sources"]["orders"]["topic"] = source
    document["sources"]["orders"]["decode"]["dlq"] = broken
    document["sinks"][0]["topic"] = clean
    (folder / "pipeline.yml").write_text(yaml.safe_dump(document))
    kafka.produce(source, [order(1), order(2), b"broken", order(3, amount=-1), order(4, minute=5)])
    run(folder)
    kafka.produce(source, [order(5, minute=9), b'{"id": "five"}'])
    runner = run(folder)
    assert sorted(row["id"] for row in values(kafka, clean)) == [1, 2, 4, 5]
    dead = kafka.rows(broken)
    assert [row[1] for row in dead] == [b"broken", b'{"id": "five"}']
    assert dict(dead[0][7])["headrace.offset"] == b"2" and dict(dead[0][7])["headrace.error"]
    minutes = arrow_table(folder / "lake" / "orders_per_minute").to_pylist()
    assert [(row["orders"], row["revenue"]) for row in minutes if row["minute"].minute == 0] == [(2, 5.0)]
    proof = verify(str(folder / "lake" / "orders"), bootstrap=kafka.bootstrap)
    assert proof.holds and proof.partitions[0].rows == 7
    status = State(folder).read()
    assert status["state"] == FINISHED
    assert status["queries"]["clean-topic"]["rows"] == 2 and runner.queries["clean-topic"]["lag"] == 0


def test_a_rollup_counts_every_event_once(kafka: Any, tmp_path: Path, run: Run) -> None:
    topic, out = kafka.topic(), kafka.topic()
    document = ready.rollup(
        topic, schema="shop string, amount double, at timestamp", time="at", window="5m", delay="1m", by=["shop"],
        measures=["count(*) as orders", "sum(amount) as revenue"], broker=kafka.bootstrap, name="rollup", to_topic=out,
    )  # fmt: skip
    ready.save(tmp_path / "rollup", document, "Roll-up")
    kafka.produce(topic, [order(i, minute=i % 4, shop="ab"[i % 2]) for i in range(20)])
    kafka.produce(topic, [order(99, minute=30, shop="z"), b"junk"])
    run(tmp_path / "rollup")
    kafka.produce(topic, [order(99, minute=50, shop="z")])
    run(tmp_path / "rollup")
    found = {(row["shop"], row["window_start"][11:16]): row["orders"] for row in values(kafka, out)}
    assert found == {("a", "12:00"): 10, ("b", "12:00"): 10, ("z", "12:30"): 1}
    assert len(values(kafka, out)) == 3


def test_doubles_are_left_out_across_batches(kafka: Any, tmp_path: Path, run: Run) -> None:
    topic, out = kafka.topic(), kafka.topic()
    document = ready.dedup(topic, out, id_path="id", delay="1h", broker=kafka.bootstrap, name="dedup")
    ready.save(tmp_path / "dedup", document, "Dedup")
    kafka.produce(topic, [{"value": order(i % 3), "key": b"k", "headers": {"h": b"1"}} for i in range(6)])
    run(tmp_path / "dedup")
    kafka.produce(topic, [order(1), order(7), b"no id", b"no id"])
    run(tmp_path / "dedup")
    rows = kafka.rows(out)
    assert sorted(row[1] for row in rows) == sorted([order(0), order(1), order(2), order(7), b"no id", b"no id"])
    assert (b"k", (("h", b"1"),)) in [(row[0], row[7]) for row in rows]


def test_a_stream_is_enriched_by_the_newest_record_of_a_key(kafka: Any, tmp_path: Path, run: Run) -> None:
    """Also of a key that has moved to another partition, as keys do when a topic gains partitions."""
    topic, people, out = kafka.topic(), kafka.topic(2), kafka.topic()
    old = [b'{"name":"an"}', b'{"name":"ann"}']
    kafka.produce(people, [{"key": b"7", "value": each, "timestamp": 1000} for each in old], partition=1)
    kafka.produce(people, [{"key": b"8", "value": b'{"name":"bob"}', "timestamp": 1000}], partition=1)
    kafka.produce(people, [{"key": b"7", "value": b'{"name":"anna"}', "timestamp": 2000}])
    kafka.produce(people, [{"key": b"8", "value": None, "timestamp": 2000}])
    kafka.produce(topic, [b'{"order":1,"customer":7}', b'{"order":2,"customer":8}'])
    document = ready.enrich(
        topic, schema="order int, customer int", lookup_topic=people, lookup_schema="name string", on="customer",
        broker=kafka.bootstrap, name="enrich", to_topic=out,
    )  # fmt: skip
    ready.save(tmp_path / "enrich", document, "Enrich")
    run(tmp_path / "enrich")
    assert sorted(values(kafka, out), key=lambda row: row["order"]) == [
        {"order": 1, "customer": 7, "name": "anna"},
        {"order": 2, "customer": 8},
    ]


def test_a_replay_ends_even_into_the_topic_that_it_reads(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [{"value": b"%d" % i, "key": b"k", "headers": {"a": b"b"}} for i in range(10)])
    replay = Replay(kafka.bootstrap, topic, tmp_path / "replay", topic=topic, where="offset >= 5", keep_partition=True)
    replay._plan()
    kafka.grow(topic, 2)  # it was interrupted, and the topic has more partitions now
    kafka.produce(topic, [b"%d" % i for i in range(10)], partition=1)
    assert replay.run(spark) == 10
    assert [row[1] for row in kafka.rows(topic)] == [b"%d" % i for i in [*range(10), *range(5, 10)]]
    assert kafka.rows(topic)[-1][7] == (("a", b"b"),)
    replay.run(spark)  # it is done: nothing more
    assert len(kafka.rows(topic)) == 15


def test_an_archive_is_replayed_at_a_given_rate(spark: Any, kafka: Any, tmp_path: Path, run: Run) -> None:
    topic, out = kafka.topic(), kafka.topic()
    kafka.produce(topic, [{"value": b"%d" % i, "key": b"k"} for i in range(9)])
    document = ready.archive([topic], str(tmp_path / "table"), broker=kafka.bootstrap, name="archive")
    ready.save(tmp_path / "archive", document, "Archive")
    run(tmp_path / "archive")
    seen: list[tuple[int, int]] = []
    again = tmp_path / "replay"
    replay = Replay(kafka.bootstrap, out, again, table=str(tmp_path / "table"), rate=4)
    assert replay.run(spark, lambda done, total: seen.append((done, total))) == 9
    assert [row[:2] for row in kafka.rows(out)] == [row[:2] for row in kafka.rows(topic)]
    assert {done for done, _ in seen} <= {0, 4, 8, 9} and seen[-1] == (9, 9)
    batches = sorted(path for path in (again / "checkpoint" / "offsets").iterdir() if path.name.isdigit())
    ends = [json.loads(path.read_text().splitlines()[-1])["row"] for path in batches]
    assert ends[:3] == [4, 8, 9], "portions of four"


def test_a_dry_run_finds_what_is_wrong(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    document = {
        "name": "p",
        "broker": kafka.bootstrap,
        "sources": {"a": {"topic": topic, "decode": {"schema": "id long"}}, "b": {"topic": "nowhere-to-be-found"}},
        "transform": [{"name": "c", "sql": "select idd from a"}],
        "sinks": [{"type": "topic", "from": "c", "topic": "x"}],
    }
    (tmp_path / "pipeline.yml").write_text(yaml.safe_dump(document))
    found = [*before_spark(load(tmp_path)), *check(spark, load(tmp_path), tmp_path)]
    assert [(each.what, each.good) for each in found] == [
        ("broker", True),
        ("source a", True),
        ("source b", False),
        ("views", False),
    ]
    assert "headrace topic create" in found[2].told and "idd" in found[3].told


def test_what_does_not_decode_fails_a_pipeline_that_says_so(kafka: Any, tmp_path: Path, run: Run) -> None:
    topic, out = kafka.topic(), kafka.topic()
    document = {
        "name": "strict",
        "broker": kafka.bootstrap,
        "sources": {"a": {"topic": topic, "decode": {"schema": "id long"}}},
        "sinks": [{"type": "topic", "from": "a", "topic": out}],
    }
    (tmp_path / "pipeline.yml").write_text(yaml.safe_dump(document))
    kafka.produce(topic, [b'{"id": 1}', b"not at all"])
    with pytest.raises(PipelineError, match="does not fit"):
        run(tmp_path)
    assert "does not fit" in State(tmp_path).read()["queries"]["a-topic"]["error"]
    assert kafka.rows(out) == []
