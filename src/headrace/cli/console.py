"""`headrace console`: the console of a coordinator (`headrace cluster up`), from another terminal or a script."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from headrace.cli.report import UsageError
from headrace.core.errors import HeadraceError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
PROMPT = b"> "
PROMPT_AFTER_FAILURE = b"!> "
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

    Brokers are numbered from 0. The exit code is 1 if the command could not be carried out.
    """
    with _connect(address) as line:
        greeting = line.read()
        if command:
            print(line.ask(" ".join(command)))
            raise typer.Exit(line.failed)
        print(greeting)
        ask = _ask()
        while (typed := ask()) is not None:
            answer = line.ask(typed)
            if answer:
                print(answer)
            if line.closed:
                return
        if not sys.stdin.isatty():
            raise typer.Exit(line.ever_failed)


class _Line:
    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.closed = False
        self.failed = self.ever_failed = False

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
        while not (b"\n" + found).endswith((b"\n" + PROMPT, b"\n" + PROMPT_AFTER_FAILURE)):
            piece = self._stream.recv(65_536)
            if not piece:
                self.closed = True
                break
            found += piece
        self.failed = found.endswith(PROMPT_AFTER_FAILURE)
        self.ever_failed = self.ever_failed or self.failed
        return found.removesuffix(PROMPT_AFTER_FAILURE).removesuffix(PROMPT).decode(errors="replace").rstrip("\n")


def _connect(address: str) -> _Line:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--address {address!r} is not HOST:PORT")
    try:
        return _Line(socket.create_connection((host, int(port)), TIMEOUT_S))
    except OSError as error:
        reason = error.strerror or str(error)
        raise HeadraceError(f"no console on {address}: {reason}; start one with: headrace cluster up") from error


def _ask() -> Callable[[], str | None]:
    """Where commands come from: a prompt on a terminal, else the lines of standard input. None: no more."""
    if sys.stdin.isatty():
        from headrace.supervisor.doors import prompt_session

        ask: Callable[[], str] = prompt_session().prompt
    else:
        ask = input

    def typed() -> str | None:
        try:
            return ask()
        except EOFError:
            return None

    return typed
