"""For all tests: properties are tried with the same examples every time, so that a suite that passed passes again.

HYPOTHESIS_RANDOM=1 tries others; what that finds becomes a test of its own. How long an example takes says nothing on a
machine that does other things too: there is no deadline.

What fails is also written to the file that TEST_FAILURES_FILE names: `run.py` runs it once more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    derandomize=not os.environ.get("HYPOTHESIS_RANDOM"),
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("TEST_FAILURES_FILE")
    if path is None or not report.failed:
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    error = crash.message if crash is not None else str(report.longrepr)
    noted = Path(path).read_text() if Path(path).exists() else ""
    if json.dumps(report.nodeid) not in noted:  # not twice: a test may fail, and its teardown, too
        with Path(path).open("a") as file:
            file.write(json.dumps({"name": report.nodeid, "error": error.strip().split("\n")[0][:300]}) + "\n")
