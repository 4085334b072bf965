"""`headrace console`: the console of a coordinator (`headrace cluster up`), from another terminal or a script."""

from __future__ import annotations

import socket
import sys
from typing import Annotated

import typer

from headrace.cli.report import UsageError
from headrace.core.errors import HeadraceError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
PROMPT = b"> "
TIMEOUT_S = 300.0


@app.command()
def console(
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND...]", help="One command; else ask.")] = None,
    address: Annotated[str, typer.Option("--address", "-a", metavar="HOST:PORT")] = "127.0.0.1:8081",
) -> None:
    """Talk to a running `headrace cluster up`.

    \b
      headrace console                   ask for commands; `help` lists them
      headrace console status            one command, then end
      headrace console broker stop 3
    """
    with _connect(address) as line:
        greeting = line.read()
        if command:
            print(line.ask(" ".join(command)))
            return
        print(greeting)
        _complete()
        while (typed := _typed()) is not None:
            answer = line.ask(typed)
            if answer:
                print(answer)
            if line.closed:
                return


class _Line:
    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.closed = False

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def ask(self, command: str) -> str:
        self._stream.sendall(command.encode() + b"\n")
        return self.read()

    def read(self) -> str:
        """Until the next prompt, or the end."""
        found = b""
        while not (found.endswith(b"\n" + PROMPT) or found == PROMPT):
            piece = self._stream.recv(65_536)
            if not piece:
                self.closed = True
                break
            found += piece
        return found.removesuffix(PROMPT).decode(errors="replace").rstrip("\n")


def _connect(address: str) -> _Line:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--address {address!r} is not HOST:PORT")
    try:
        return _Line(socket.create_connection((host, int(port)), TIMEOUT_S))
    except OSError as error:
        reason = error.strerror or str(error)
        raise HeadraceError(f"no console on {address}: {reason}; start one with: headrace cluster up") from error


def _typed() -> str | None:
    try:
        return input(PROMPT.decode() if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _complete() -> None:
    try:
        import readline
    except ImportError:
        return
    from headrace.supervisor.console import completions

    def nth(_: str, state: int) -> str | None:
        found = completions(readline.get_line_buffer())
        return found[state] + " " if state < len(found) else None

    readline.set_completer(nth)
    readline.parse_and_bind("tab: complete")
