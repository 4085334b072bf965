"""A TCP proxy that understands Kafka's frames, and loses, delays and doubles them, from a seed.

    proxy = Proxy(Faults(lose_answer=0.02, repeat=0.05), seed=7)
    with BrokerProcess(folder, "--advertised-port", str(proxy.port)) as broker, proxy:
        proxy.upstream = "127.0.0.1", broker.port
        ... clients with bootstrap servers 127.0.0.1:{proxy.port} ...

Rules:
- What a network may do is done, and no more: bytes that arrive are in order and whole; a connection breaks between two
  frames; nothing is made up.
- `lose_answer`: the request is served, and the connection breaks instead of carrying the answer.
- `lose_request`: the connection breaks before the request got through.
- `delay_answer`: an answer, and all that follow it on this connection, come later.
- `repeat`: the request is delivered a second time, over another connection, at once or later; that answer is lost.
- `late`: the connection breaks, and the request is delivered all the same, later, over another connection: its sender
  may have sent it again, or may have done something else, long before it arrives.
- Only requests that a client may be expected to survive are doubled or late: `doubled` names their API keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections import Counter
from types import TracebackType
from typing import NamedTuple, Self

from headrace.runtime.thread import LoopThread

_START_SECONDS = 30.0
_LENGTH_BYTES = 4

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 24, 25, 26, 28
IDEMPOTENT = frozenset({PRODUCE})  # sequences tell what is repeated
# With version 2 of the protocol (KIP-890) every transaction has an epoch of its own, which tells what is late.
TRANSACTIONS_V2 = frozenset({PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS})


class Faults(NamedTuple):
    """How likely each is, for each request."""

    lose_answer: float = 0.0
    delay_answer: float = 0.0
    lose_request: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    longest_delay_s: float = 0.1
    doubled: frozenset[int] = IDEMPOTENT
    spared: frozenset[int] = frozenset()  # API keys to which nothing happens


class BrokenError(Exception):
    """The proxy breaks this connection."""


class Proxy:
    """See the module. `counts`: what was done, by the names of the faults. Faults can be changed at any time."""

    def __init__(self, faults: Faults, *, seed: int) -> None:
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.upstream: tuple[str, int] = ("127.0.0.1", 0)
        self._dice = random.Random(seed)
        # Bound at once, so that a broker can be told the port; served from `__enter__` on.
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread: LoopThread | None = None
        self._server: asyncio.Server | None = None
        self._extra: set[asyncio.Task[None]] = set()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread = LoopThread("proxy")
        self._thread.run(self._start(), _START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.run(self._stop(), _START_SECONDS)
        self._thread.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # for connections that were accepted, and have not begun
        while self._extra:
            for task in self._extra:
                task.cancel()
            await asyncio.gather(*self._extra, return_exceptions=True)

    # -- connections ---------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._extra.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(*self.upstream)
            lost: set[int] = set()  # correlation ids whose answers do not get through
            pumps = [
                asyncio.ensure_future(self._requests(reader, far, lost)),
                asyncio.ensure_future(self._answers(far_reader, writer, lost)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the broker is away, so are we; or the proxy ends, and whoever accepted this does not wait for it
        finally:
            self._extra.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, BrokenError):
            while True:
                frame = await _frame(reader)
                api_key = int.from_bytes(frame[4:6], "big")
                if api_key not in self.faults.spared:
                    self._trouble(frame, api_key, lost)
                writer.write(frame)
                await writer.drain()

    def _trouble(self, frame: bytes, api_key: int, lost: set[int]) -> None:
        """What may happen to a request. Raises BrokenError."""
        faults = self.faults
        if self._happens("lose_request", faults.lose_request):
            raise BrokenError
        if api_key in faults.doubled:
            if self._happens("late", faults.late):
                self._deliver(frame)
                raise BrokenError
            if self._happens("repeat", faults.repeat):
                self._deliver(frame)
        if self._happens("lose_answer", faults.lose_answer):
            lost.add(int.from_bytes(frame[8:12], "big"))

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: set[int]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                if int.from_bytes(frame[4:8], "big") in lost:
                    return
                if self._happens("delay_answer", self.faults.delay_answer):
                    await asyncio.sleep(self._delay_s())
                writer.write(frame)
                await writer.drain()

    # -- dice ----------------------------------------------------------------------------------------------------

    def _happens(self, name: str, chance: float) -> bool:
        happens = chance > 0 and self._dice.random() < chance
        self.counts[name] += happens
        return happens

    def _delay_s(self) -> float:
        return self._dice.uniform(0.0, self.faults.longest_delay_s)

    def _deliver(self, frame: bytes) -> None:
        """Over another connection, at once or later."""
        delay_s = self._delay_s() if self._dice.random() < 0.5 else 0.0
        task = asyncio.get_running_loop().create_task(self._delivered(frame, delay_s))
        self._extra.add(task)
        task.add_done_callback(self._extra.discard)

    async def _delivered(self, frame: bytes, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            reader, writer = await asyncio.open_connection(*self.upstream)
            try:
                writer.write(frame)
                async with asyncio.timeout(_START_SECONDS):
                    await _frame(reader)
            finally:
                writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next one, with its length."""
    length = await reader.readexactly(_LENGTH_BYTES)
    return length + await reader.readexactly(int.from_bytes(length, "big"))
