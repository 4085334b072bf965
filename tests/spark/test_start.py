"""What Spark starts for every query must start fast."""

from __future__ import annotations

import subprocess
import sys


def test_planning_loads_nothing_that_opens_records() -> None:
    program = "import sys, headrace.spark.entry, headrace.spark.source; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "headrace.spark.task" in loaded
    assert not {"numba", "pandas", "headrace.spark.kernel", "deltalake"} & set(loaded)
