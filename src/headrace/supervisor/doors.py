"""Where a supervisor is reached: a console on TCP, a status page on HTTP, and the terminal it runs in.

Rules:
- The TCP doors are bound to the supervisor's own host, which is loopback unless somebody chose otherwise: whoever
  reaches the console may stop brokers.
- On TCP the prompt after a command that failed is another one, so that a program can tell.
- A line that is too long, or not text, ends its connection; no other notices. So does a request of HTTP: any page in a
  browser of this machine can send one, with commands in its body.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ConfigError
from headrace.supervisor.console import LONGEST_LINE, Console, completions
from headrace.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

PROMPT: Final = "> "
PROMPT_AFTER_FAILURE: Final = "!> "
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
                writer.write((PROMPT_AFTER_FAILURE if reply.failed else PROMPT).encode())
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
    """Lines from the terminal, with history and completion. What is said meanwhile appears above the prompt."""

    def __init__(self, console: Console, stop: Callable[[], None]) -> None:
        self._console = console
        self._stop = stop
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read(), name="console")

    async def leave(self) -> None:
        """Give the terminal back as it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        from prompt_toolkit.patch_stdout import patch_stdout

        session = prompt_session()
        try:
            with patch_stdout():
                while True:
                    reply = await self._console.answer(await session.prompt_async())
                    if reply.text:
                        print(reply.text, file=sys.stderr)
                    if reply.quits:
                        return
        except (EOFError, KeyboardInterrupt):
            pass
        finally:
            self._stop()


def prompt_session() -> PromptSession[str]:
    """Asks for lines on a terminal; completes the words of the console."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class Words(Completer):
        def get_completions(self, document: Document, complete_event: object) -> Iterator[Completion]:
            line = document.text_before_cursor
            begun = "" if line.endswith(" ") else (line.split() or [""])[-1]
            return (Completion(word, start_position=-len(begun)) for word in completions(line))

    return PromptSession(PROMPT, completer=Words(), complete_while_typing=False)
