"""What Spark starts for every query must start fast."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import psutil

from headrace import Broker


def test_planning_loads_nothing_that_opens_records() -> None:
    program = "import sys, headrace.spark.entry, headrace.spark.source; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "headrace.spark.task" in loaded
    assert not {"numba", "pandas", "headrace.spark.kernel", "deltalake"} & set(loaded)


def test_workers_are_forked_from_a_process_that_has_the_decoder_and_one_thread() -> None:
    program = """
import os, sys
from headrace.spark import daemon
daemon.prepare("pyspark.sql.worker.plan_data_source_read")
assert "numba" not in sys.modules
daemon.prepare(daemon.READS)
from headrace.spark import kernel
assert len(kernel.fill.signatures) == len(kernel.walk.signatures) == 1
assert not {"pyarrow", "pandas"} & set(sys.modules)
assert not os.path.exists("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1
import pyarrow as pa
from headrace.spark.decode import Decoder, Span
from headrace.wire import batch
records = memoryview(bytearray(batch.build([(b"k", b"v")], timestamp_ms=0)))
schema = pa.schema([("key", pa.binary()), ("offset", pa.int64())])
after, pages = Decoder("t", 0, schema).pages(records, Span(0, 9))
assert after == 1 and [page.num_rows for page in pages] == [1]
assert len(kernel.fill.signatures) == len(kernel.walk.signatures) == 1, "compiled again"
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, ""), found.stderr


def test_what_spark_starts_to_plan_a_query_reads_no_zip(spark: Any, broker: Broker) -> None:
    """A module in a zip is compiled at every start: four times slower."""
    spark.read.format("headrace").options(
        **{"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    ).load()
    planners = []
    for each in psutil.Process(spark.sparkContext._gateway.proc.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if any("pyspark.sql.worker" in word for word in each.cmdline()):
                planners.append(each.environ()["PYTHONPATH"])
    assert planners
    assert not [path for path in planners if ".zip" in path or ".jar" in path]
