"""Real clients against a real broker: one `headrace serve` process, on disk, for the whole folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.process import BrokerProcess

JAVA = Path(__file__).parent / "java"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


@pytest.fixture(scope="session")
def headrace_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The plugin's fixture, in a process of its own. It keeps records of any age: tests like fixed times."""
    flags = ("--log-level", "warning", "--group-consumer-heartbeat-interval-ms", "500", "--storage-retention-ms", "-1")
    with BrokerProcess(tmp_path_factory.mktemp("clients") / "data", *flags) as broker:
        yield broker
        assert "Traceback" not in broker.log_tail(1000), broker.log_tail(60)


def _run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture(scope="session")
def class_path(request: pytest.FixtureRequest) -> str:
    """The client's jars and the compiled scenarios, made once and kept in pytest's cache."""
    missing = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    sources = sorted(JAVA.glob("*.java"))
    source = b"".join(path.read_bytes() for path in (JAVA / "pom.xml", *sources))
    home = request.config.cache.mkdir(f"java-{hashlib.sha256(source).hexdigest()[:12]}")
    found = f"{home}/lib/*:{home}/classes"
    if not (home / "made").exists():
        try:
            copied = _run(["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), COPY, f"-DoutputDirectory={home}/lib"], 100)
        except subprocess.TimeoutExpired:
            pytest.skip("Maven took too long; is its repository within reach?")
        if copied.returncode:
            pytest.skip(f"Maven failed: {copied.stdout.strip()[-300:]}")
        compiled = _run(["javac", "-cp", f"{home}/lib/*", "-d", f"{home}/classes", *map(str, sources)], 300)
        assert compiled.returncode == 0, compiled.stderr
        (home / "made").touch()
    return found
