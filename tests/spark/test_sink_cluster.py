"""Source, sink and pipelines on real clusters on this machine: several JVMs, nothing shared but the checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace.testing.spark_exactly_once.flows import COPIES
from headrace.testing.spark_exactly_once.history import History

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

CLUSTER = "local-cluster[2,1,1024]"
ATTEMPTS = "HEADRACE_TEST_ATTEMPTS"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.memory": "600m",
    "spark.cores.max": "4",
}


def test_a_pipeline_from_topic_to_topics_runs_on_a_cluster_of_two_executors(
    tmp_path: Path, quick: dict[str, str]
) -> None:
    """It takes the source, the sink and decoding along."""
    History(tmp_path, 4, ("letters",), (), per_batch=200, master=CLUSTER, conf=quick).run()


def test_source_and_sink_run_on_a_cluster_beside_a_pipeline(tmp_path: Path) -> None:
    History(tmp_path, 4, (*COPIES, "table"), (), per_batch=200, master=CLUSTER).run()


@pytest.mark.parametrize("flow", [*COPIES, "letters", "table"])
def test_a_cluster_of_two_executors_loses_one_and_every_row_is_there_once(tmp_path: Path, flow: str) -> None:
    History(tmp_path, 5, (flow,), ("executor",), master=CLUSTER).run()


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """A standalone master, and workers under two names: Spark never puts a copy of a task on the same host."""
    log = (tmp_path / "cluster.log").open("wb")
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(tmp_path / "work")}
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")

    def start(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([spark_class, *words], stdout=log, stderr=log, env=environ)

    running = [
        start("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    ]
    try:
        address = _await(tmp_path / "cluster.log", r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.1", "127.0.0.2"):
            words = ("--host", host, "--cores", "2", "--memory", "700m", "--webui-port", "0", address)
            running.append(start("org.apache.spark.deploy.worker.Worker", *words))
        _await(tmp_path / "cluster.log", r"(?s)Registering worker.*(Registering worker)")
        yield address
    finally:
        for process in running:
            process.kill()
            process.wait(30)
        log.close()


def _await(log: Path, words: str) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(words, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.2)
    raise AssertionError(f"the cluster did not start: {log.read_text(errors='replace')[-2000:]}")


def slow_first(frame: Any) -> Any:
    """The first attempt at partition 0 of the first batch dawdles, for speculation. Every attempt leaves a file."""
    folder = os.environ[ATTEMPTS]

    def dawdle(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        if batch_id == "0" and context.partitionId() == 0:
            Path(folder, str(context.attemptNumber())).touch()
            if context.attemptNumber() == 0:
                yield from batches
                time.sleep(20)
        yield from batches

    return frame.mapInArrow(dawdle, "key binary, value binary")


@pytest.mark.parametrize("delivery", COPIES)
def test_speculative_copies_write_nothing_twice(
    tmp_path: Path, two_hosts: str, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    monkeypatch.setenv(ATTEMPTS, str(attempts))
    transform = "tests.spark.test_sink_cluster:slow_first"
    History(tmp_path, 6, (delivery,), (), 1000, two_hosts, SPECULATION, transform).run()
    assert sorted(path.name for path in attempts.iterdir()) == ["0", "1"], "no copy ran"
