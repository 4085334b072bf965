"""`headrace serve` as a process of its own: for tests that kill, stop and restart real brokers.

    with BrokerProcess(tmp_path) as broker:
        ... broker.bootstrap_servers ...
        broker.kill()
        broker.start()  # same port, same directory

A process that outlives its test is killed at the end of the `with` block, or else at the end of the interpreter.
"""

from __future__ import annotations

import atexit
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headrace.testing.ports import free_port

READY = re.compile(r"ready: kafka (?P<kafka>\S+:\d+)(?: http (?P<http>\S+))?")
START_SECONDS = 90.0  # on a machine that is busy with other things
STOP_SECONDS = 60.0


class NotReadyError(RuntimeError):
    """A broker did not start. `code` is that of its exit; None if it had to be killed, for it said nothing in time."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class BrokerProcess:
    """A broker on a directory. After the first start it keeps its port, which nobody else is given meanwhile."""

    def __init__(self, data_dir: Path, *flags: str, port: int = 0) -> None:
        self.data_dir = data_dir
        self.environ: dict[str, str] = {}  # besides ours
        self.host = "127.0.0.1"
        self.flags = flags
        self.port = port
        self.http_url: str | None = None
        self.log = data_dir.with_name(data_dir.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "headrace", "serve"),
            *("--data-dir", str(self.data_dir), "--port", str(self.port), "--http-port", "0"),
            *self.flags,
        ]

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process without waiting for anything. Its log is appended to `log`."""
        self.port = self.port or free_port(self.host)
        with self.log.open("ab") as stderr:
            environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
            self._process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=stderr, env={**environ, **self.environ}
            )
        atexit.register(self._process.kill)
        return self._process

    def start(self) -> Self:
        """Start, and wait until it serves. Raises NotReadyError with the end of the log if it does not."""
        self.launch()
        return self.await_ready()

    def await_ready(self, timeout_s: float = START_SECONDS) -> Self:
        """Wait until a broker that was launched serves. Raises NotReadyError, and has killed it then."""
        process = self._process
        assert process is not None and process.stdout is not None
        line = _first_line(process.stdout, timeout_s)
        ready = READY.search(line)
        if ready is None:
            code = _exit_code(process)
            self.kill()
            raise NotReadyError(f"the broker did not start; it said {line!r}\n{self.log_tail()}", code)
        self.port = int(ready["kafka"].rpartition(":")[2])
        self.http_url = ready["http"]
        return self

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL; harmless if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._reap(self._process)

    def ended(self) -> int:
        """Wait until it ends by itself; returns the exit code."""
        assert self._process is not None
        return self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        code = process.wait(STOP_SECONDS)
        atexit.unregister(process.kill)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return code

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Of a process that has closed its output; None if it runs on all the same."""
    try:
        return process.wait(1.0)
    except subprocess.TimeoutExpired:
        return None


def _first_line(stream: IO[bytes], timeout_s: float) -> str:
    """What is written until the first newline, the end, or the deadline."""
    deadline = time.monotonic() + timeout_s
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while b"\n" not in found and selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(stream.fileno(), 4096)
            if not piece:
                break
            found += piece
    return found.decode(errors="replace").rstrip()
