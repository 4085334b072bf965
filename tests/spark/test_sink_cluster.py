"""Source and sink on real Spark clusters on this machine: several JVMs, nothing shared but the checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.fire import DELIVERIES, Run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.executor.memory": "600m",
    "spark.cores.max": "4",
}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_cluster_of_two_executors_loses_one_and_copies_everything_once(tmp_path: Path, delivery: str) -> None:
    Run(tmp_path, 5, delivery, kills=("executor",), master="local-cluster[2,1,1024]", records=3000).go()


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


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_speculative_copies_write_nothing_twice(tmp_path: Path, two_hosts: str, delivery: str) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    more = {"slow": str(attempts), "spark": SPECULATION}
    Run(tmp_path, 6, delivery, kills=(), master=two_hosts, records=2000, per_batch=1000, more=more).go()
    assert sorted(path.name for path in attempts.iterdir()) == ["0", "1"], "no copy ran"
