"""The demo as people run it: whole, and stopped half way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("deltalake")

ROOT = Path(__file__).parents[2]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """All that it makes lies below `folder`, and every process of it says so."""
    command = [sys.executable, "-m", "headrace", "demo", "--report", str(folder / "report.html"), *words]
    environ = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left_over(folder: Path) -> list[str]:
    """Processes that still speak of the folder when those that are about to end had their time."""
    deadline = time.monotonic() + 60
    while (found := speaking_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def speaking_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found


def below(parent: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    """Processes that another one has started, with their names."""
    found = {}
    for process in psutil.Process(parent.pid).children(recursive=True):
        try:
            found[process] = process.name()
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.process
@pytest.mark.java
def test_ctrl_c_stops_the_demo_and_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path)
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "shops open" in line:
                break
        deadline = time.monotonic() + 200
        while "java" not in (family := below(demo)).values():
            assert time.monotonic() < deadline, f"there is no JVM: {family}"
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        out = demo.stdout.read()
        assert demo.wait(200) == 130, out
        assert "Traceback" not in out
        assert psutil.wait_procs(list(family), 60)[1] == []
        assert left_over(tmp_path) == [] and list(tmp_path.glob("headrace-demo-*")) == []
    finally:
        demo.kill()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_every_order_is_counted_once_in_a_short_day(tmp_path: Path) -> None:
    demo = start(tmp_path, "--orders", "3000", "--seconds", "2")
    try:
        out, _ = demo.communicate(timeout=800)
    finally:
        demo.kill()
    assert demo.returncode == 0, out
    assert "kill -9" in out and "The books agree" in out and out.count("✔") == 6
    assert "counted exactly once" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert left_over(tmp_path) == [] and list(tmp_path.glob("headrace-demo-*")) == []
