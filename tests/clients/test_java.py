"""The Java client: the scenarios of java/Scenarios.java, all in one process."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parent / "java"
SOURCE = FOLDER / "Scenarios.java"
SCENARIOS = [*re.findall(r'ALL\.put\("(\w+)"', SOURCE.read_text()), "gzip", "snappy", "lz4", "zstd"]
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture(scope="session")
def class_path(request: pytest.FixtureRequest) -> str:
    """The client's jars and the compiled scenarios, made once and kept in pytest's cache."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    source = (FOLDER / "pom.xml").read_bytes() + SOURCE.read_bytes()
    home = request.config.cache.mkdir(f"java-{hashlib.sha256(source).hexdigest()[:12]}")
    found = f"{home}/lib/*:{home}/classes"
    if not (home / "made").exists():
        try:
            copied = run(["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), COPY, f"-DoutputDirectory={home}/lib"], 100)
        except subprocess.TimeoutExpired:
            pytest.skip("Maven took too long; is its repository within reach?")
        if copied.returncode:
            pytest.skip(f"Maven failed: {copied.stdout.strip()[-300:]}")
        compiled = run(["javac", "-cp", f"{home}/lib/*", "-d", f"{home}/classes", str(SOURCE)], 60)
        assert compiled.returncode == 0, compiled.stderr
        (home / "made").touch()
    return found


@pytest.fixture(scope="module")
def results(class_path: str, headrace_broker) -> dict[str, str]:
    """What the only run said about each scenario."""
    done = run(["java", "-Xmx256m", "-cp", class_path, "Scenarios", headrace_broker.bootstrap_servers, "java"], 100)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return {name.rstrip(":"): f"{verdict} {rest}" for verdict, name, rest in lines}


@pytest.mark.parametrize("name", SCENARIOS)
def test_java(results: dict[str, str], name: str):
    assert results[name].startswith("PASS"), results[name]
