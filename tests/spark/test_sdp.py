"""An exported pipeline under Spark's own runner for declarative pipelines, twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("deltalake")

from headrace.cli import run
from headrace.spark.java import java_home
from headrace.spark.lake import arrow_table
from headrace.spark.session import worker_python

ROOT = Path(__file__).parents[2]
RUNNER = Path(sys.executable).with_name("spark-pipelines")


def run_sdp(folder: Path) -> None:
    environ = {
        **os.environ,
        "JAVA_HOME": java_home(),
        "PYSPARK_PYTHON": worker_python(),
        "PYTHONPATH": str(ROOT / "src"),
        "SPARK_HOME": str(Path(sys.modules["pyspark"].__file__ or "").parent),
    }
    words = [RUNNER, "run", "--remote", "local[2]", "--conf", "spark.sql.catalogImplementation=hive"]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_second_run_of_an_exported_pipeline_goes_on_where_the_first_ended(kafka: Any, tmp_path: Path) -> None:
    source, out, folder = kafka.topic(), kafka.topic(), tmp_path / "p"
    document = {
        "name": "exported",
        "broker": kafka.bootstrap,
        "sources": {"a": {"topic": source, "decode": {"schema": "id long", "on_error": "skip", "keep": []}}},
        "transform": [{"name": "odd", "sql": "select id from a where id % 2 = 1"}],
        "sinks": [
            {"type": "topic", "from": "odd", "topic": out, "key": "id"},
            {"type": "table", "from": "odd", "path": "lake/odd"},
        ],
    }
    folder.mkdir()
    (folder / "pipeline.yml").write_text(yaml.safe_dump(document))
    assert run(["pipeline", "export-sdp", str(folder)]) == 0
    for first in (0, 10):
        kafka.produce(source, [b'{"id": %d}' % number for number in range(first, first + 10)])
        run_sdp(folder / "sdp")
        odd = list(range(1, first + 10, 2))
        assert sorted(json.loads(row[1])["id"] for row in kafka.rows(out)) == odd
        assert sorted(arrow_table(folder / "lake" / "odd")["id"].to_pylist()) == odd
