"""kafkajs (Node.js): the scenarios of kafkajs/scenarios.js, each in a process of its own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

FOLDER = Path(__file__).parent / "kafkajs"
SCRIPT = FOLDER / "scenarios.js"
SCENARIOS = re.findall(
    r"^  (?:async )?(\w+)(?:: \(scene\)|\(scene\) \{)", SCRIPT.read_text().split("const scenarios")[1], re.M
)
INSTALL_SECONDS = 100
SCENARIO_SECONDS = 200


@pytest.fixture(scope="session")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """kafkajs as the lock file names it, installed once and kept in pytest's cache."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    lock = (FOLDER / "package-lock.json").read_bytes()
    home = request.config.cache.mkdir(f"kafkajs-{hashlib.sha256(lock).hexdigest()[:12]}")
    modules = home / "node_modules"
    if not (home / "installed").exists():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, home / name)
        command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(
                command, cwd=home, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip("npm ci took too long; is the package registry within reach?")
        if done.returncode:
            pytest.skip(f"npm ci failed: {done.stderr.strip()[-300:]}")
        (home / "installed").touch()
    return modules


def test_the_scenarios_were_found():
    assert len(SCENARIOS) >= 16


@pytest.mark.parametrize("name", SCENARIOS)
def test_kafkajs(headrace, node_modules: Path, name: str):
    environ = {**os.environ, "NODE_PATH": str(node_modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    command = ["node", str(SCRIPT), name, headrace.bootstrap_servers, headrace.name(name.replace("_", "-"))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
