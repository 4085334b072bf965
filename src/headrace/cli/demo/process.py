"""The process that runs the pipeline, with all that it starts: a JVM, and Python workers of Spark's.

Rule: it is a session of its own (in the sense of setsid), so that whatever it started is found by it, even when the
parent is gone, and nothing outlives the demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

STOP_SECONDS = 3.0
LOOK_SECONDS = 0.05


def run_pipeline(folder: Path, log: Path) -> PipelineProcess:
    """Run the pipeline of a folder, and what comes after it."""
    return PipelineProcess([sys.executable, "-m", "headrace.cli.demo.job", str(folder)], log)


class PipelineProcess:
    """A command and all that it starts; its output goes to a log."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _path(), "PYTHONUNBUFFERED": "1"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Every process of the session."""
        return [each for each in _processes() if _session(each) == self.pid]

    def kill(self) -> int:
        """SIGKILL for all of them at once; how many there were."""
        killed: set[int] = set()
        while found := self.members():  # again, as one may have started another just now
            for each in found:
                try:
                    os.kill(each, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.add(each)
            self._process.poll()
            time.sleep(LOOK_SECONDS)
        self._process.wait()
        return len(killed)

    def end(self) -> None:
        """Ask it to end, and make sure that it does."""
        if self.exit_code is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def last_words(self) -> str:
        """What it said at the end, for whoever wants to know why."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _path() -> str:
    """Where this package is, for a checkout that is not installed."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))


def _processes() -> Iterator[int]:
    proc = Path("/proc")
    if (proc / "self").exists():
        names = os.listdir(proc)
    else:
        names = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=False).stdout.split()
    return (int(name) for name in names if name.isdigit())


def _session(pid: int) -> int:
    """The session of a process that lives; -1 for others, and for those that only wait to be buried."""
    try:
        found = os.getsid(pid)
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return -1
    except OSError:
        return -1
    return found
