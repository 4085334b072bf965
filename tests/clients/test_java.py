"""The Java client: the scenarios of java/Scenarios.java, all in one process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parent / "java" / "Scenarios.java"
SCENARIOS = [*re.findall(r'ALL\.put\("(\w+)"', SOURCE.read_text()), "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def results(class_path: str, headrace_broker) -> dict[str, str]:
    """What the only run said about each scenario."""
    command = ["java", "-Xmx256m", "-cp", class_path, "Scenarios", headrace_broker.bootstrap_servers, "java"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name.rstrip(":"): f"{verdict} {rest}" for verdict, name, rest in lines}


@pytest.mark.parametrize("name", SCENARIOS)
def test_java(results: dict[str, str], name: str):
    assert results[name].startswith("PASS"), results[name]
