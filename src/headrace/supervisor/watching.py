"""One supervised process: started, watched, restarted when it dies, stopped when it is told to.

Rules:
- What died by itself is started again after a pause that doubles, up to a limit; one that has lived for a while begins
  with the short pause again. What was stopped by the console stays stopped.
- A process that was started again is announced when it is ready.
- Alive: the process runs. Ready: its port accepts, and its health page, if it has one, says so.
- Stopping is SIGTERM, and SIGKILL for those who do not end in time.
- One order after the other: several consoles may talk at once, while everything stops, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.supervisor.plan import Service

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LIVED_S: Final = 10.0
STOP_S: Final = 30.0
PROBE_S: Final = 2.0
LOOK_S: Final = 0.2
IDENTITY: Final = "meta.json"  # the first file that a broker writes to its data directory


class Watched:
    """See the module."""

    def __init__(self, service: Service, log: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.service = service
        self._say = say
        self.restarts = 0
        self.last_exit: int | None = None
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None  # announces it
        self._join: tuple[str, ...] = ()
        self._begun = 0.0
        self._waits = False  # for the next start after a death
        self._orders = asyncio.Lock()
        self._ended = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def wanted(self) -> bool:
        return self._watch is not None and not self._watch.done()

    @property
    def has_data(self) -> bool:
        """Whether it belongs to a cluster already."""
        return self.service.data_dir != "" and Path(self.service.data_dir, IDENTITY).exists()

    def joins(self) -> None:
        """From its next start on it joins the other brokers, should it have no data."""
        if self.service.seeds:
            self._join = ("--cluster-join", self.service.seeds)

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._begun if self.pid is not None else 0.0

    async def start(self, *, announce: bool = False) -> bool:
        """Start and watch; False if it runs already."""
        async with self._orders:
            return await self._start(announce)

    async def stop(self, *, for_good: bool = False) -> bool:
        """Stop and wait for the end; False if it was stopped already. `for_good`: and never start again."""
        async with self._orders:
            self._ended = self._ended or for_good
            return await self._stop()

    async def restart(self) -> None:
        async with self._orders:
            await self._stop()
            await self._start(announce=True)

    async def _start(self, announce: bool) -> bool:
        if self.wanted or self._ended:
            return False
        await self._launch()
        if announce:
            self._announce()
        self._watch = asyncio.get_running_loop().create_task(self._keep_alive(), name=f"watch {self.service.name}")
        return True

    async def _stop(self) -> bool:
        watch, self._watch = self._watch, None
        if watch is None:
            return False
        ending = [task for task in (watch, self._return) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        process = self._process
        if process is not None and process.returncode is None:
            _signal(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                _signal(process, signal.SIGKILL)
                await process.wait()
            self.last_exit = process.returncode
        return True

    async def _launch(self) -> None:
        command = (sys.executable, "-m", "headrace", *self.service.words, *self._join)
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C on the terminal is for us, and we end the children in order.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._begun = time.monotonic()

    async def _keep_alive(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            assert self._process is not None
            self.last_exit = await self._process.wait()
            if time.monotonic() - self._begun > LIVED_S:
                pause_s = FIRST_PAUSE_S
            what = f"has ended by itself ({self.last_exit})"
            while what:
                self._say(f"{self.service.name} {what}; it starts again in {pause_s:g} s")
                self._waits = True
                await asyncio.sleep(pause_s)
                self._waits = False
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self.restarts += 1
                what = await self._relaunch()
            self._announce()

    def _announce(self) -> None:
        """Say that it is back, once it is ready."""
        if self._return is not None:
            self._return.cancel()
        self._return = asyncio.get_running_loop().create_task(self._until_back(), name=f"return {self.service.name}")

    async def _until_back(self) -> None:
        while not await self.is_ready():
            if self.pid is None:
                return
            await asyncio.sleep(LOOK_S)
        self._say(f"{self.service.name} is back on {self.service.host}:{self.service.port} (process {self.pid})")

    async def _relaunch(self) -> str:
        """What went wrong, or nothing."""
        try:
            await self._launch()
        except OSError as error:  # no memory, no descriptors, no room for the log: that passes
            return f"could not be started ({error})"
        return ""

    async def state(self) -> str:
        """stopped, restarting, starting or ready, as it is now."""
        if not self.wanted:
            return "stopped"
        if self._waits or self.pid is None:
            return "restarting"
        return "ready" if await self.is_ready() else "starting"

    async def is_ready(self) -> bool:
        service = self.service
        if not await _accepts(service.host, service.port):
            return False
        return service.health_port is None or await _is_healthy(service.host, service.health_port)

    async def port_is_taken(self) -> bool:
        return await _accepts(self.service.host, self.service.port)

    def last_words(self) -> str:
        """The last line of the log, for a console."""
        try:
            with self._log.open("rb") as log:
                log.seek(0, 2)
                log.seek(max(0, log.tell() - 4096))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1][:300] if lines else ""


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _is_healthy(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
