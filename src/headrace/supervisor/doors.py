"""Where a supervisor is reached: a console on TCP, a status page on HTTP, and the terminal it runs in.

Rules:
- The TCP doors are bound to the supervisor's own host, which is loopback unless somebody chose otherwise: whoever
  reaches the console may stop brokers.
- A line that is too long, or not text, ends its connection; no other notices. So does a request of HTTP: any page in a
  browser of this machine can send one, with commands in its body.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.supervisor.console import LONGEST_LINE, Console, completions
from headrace.supervisor.supervisor import Supervisor

PROMPT: Final = "> "
REQUEST_S: Final = 10.0


class ConsoleServer:
    """Lines over TCP: a prompt, a line, an answer."""

    def __init__(self, console: Console, greeting: str) -> None:
        self._console = console
        self._greeting = greeting
        self._server: asyncio.Server | None = None
        self._talking: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> int:
        self._server = await _listen(self._talk, host, port, "the console", LONGEST_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._talking):
                writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talking[writer] = None
        try:
            writer.write(f"{self._greeting}\n{PROMPT}".encode())
            await writer.drain()
            while (line := await reader.readline()) and b" HTTP/" not in line:
                reply = await self._console.answer(line.decode())
                writer.write(f"{reply.text}\n".encode() if reply.text else b"")
                if reply.quits:
                    break
                writer.write(PROMPT.encode())
                await writer.drain()
        except (OSError, ValueError):  # a line without end, bytes that are no text, a peer that went away
            pass
        finally:
            self._talking.pop(writer, None)
            writer.close()


class StatusServer:
    """`GET /status` as JSON, `/healthz`, and `/readyz`: whether every service is ready."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        self._server = await _listen(self._serve, host, port, "the status page", 8192)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                code, document = await self._answer(head.split(b" ")[1].decode("ascii"))
                body = json.dumps(document, indent=2).encode() + b"\n"
                headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
                writer.write(f"HTTP/1.1 {code}\r\n{headers}\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, ValueError, IndexError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str) -> tuple[str, object]:
        if path == "/healthz":
            return "200 OK", {"status": "alive"}
        looks = await self._supervisor.look()
        if path == "/readyz":
            ready = all(look.state == "ready" for look in looks)
            return ("200 OK" if ready else "503 Service Unavailable"), {"ready": ready}
        if path in ("/", "/status"):
            return "200 OK", {"services": [asdict(look) for look in looks]}
        return "404 Not Found", {"error": "there are /status, /healthz and /readyz"}


async def _listen(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host: str,
    port: int,
    who: str,
    limit: int,
) -> asyncio.Server:
    try:
        return await asyncio.start_server(talk, host, port, limit=limit)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port} for {who}: {reason}; choose another port") from error


class Terminal:
    """Lines from the terminal, with history and completion where Python has readline. Read in a thread: it waits."""

    def __init__(self, console: Console, stop: Callable[[], None]) -> None:
        self._console = console
        self._stop = stop
        self._modes = _modes()

    def leave(self) -> None:
        """Give the terminal back as it was: whoever waits for a line may have switched its echo off."""
        if self._modes is not None:
            import termios

            with contextlib.suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)

    def start(self) -> None:
        try:
            import readline

            readline.set_completer(lambda text, state: _nth(readline.get_line_buffer(), state))
            readline.parse_and_bind("tab: complete")
        except ImportError:
            pass
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), name="console", daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                line = input(PROMPT)
            except (EOFError, KeyboardInterrupt):
                loop.call_soon_threadsafe(self._stop)
                return
            reply = asyncio.run_coroutine_threadsafe(self._console.answer(line), loop).result()
            if reply.text:
                print(reply.text, file=sys.stderr)
            if reply.quits:
                loop.call_soon_threadsafe(self._stop)
                return


def _modes() -> list[Any] | None:
    try:
        import termios
    except ImportError:  # not a Unix
        return None
    try:
        return termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # not a terminal
        return None


def _nth(line: str, state: int) -> str | None:
    found = completions(line)
    return found[state] + " " if state < len(found) else None
