"""The console's language: a line in, a text out.

status                      all services and how they are
broker list                 the brokers
broker start|stop|restart N
producer start|stop|restart
consumer start|stop|restart
restart all
help, quit

Brokers are numbered from 0. The producer and the consumer are there if the coordinator runs these services.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from headrace.core.config import suggestion
from headrace.supervisor.supervisor import Look, Supervisor
from headrace.supervisor.watching import Watched

HELP: Final = (
    ("status", "show all services and how they are"),
    ("broker list", "show the brokers"),
    ("broker start|stop|restart N", "one broker"),
    ("producer start|stop|restart", "the producer service"),
    ("consumer start|stop|restart", "the consumer service"),
    ("restart all", "every service, one after the other"),
    ("help", "this text"),
    ("quit", "leave the console; on the coordinator's own terminal: stop everything"),
)
WORDS: Final = {
    "status": (),
    "broker": ("list", "start", "stop", "restart"),
    "producer": ("start", "stop", "restart"),
    "consumer": ("start", "stop", "restart"),
    "restart": ("all",),
    "help": (),
    "quit": (),
}
LONGEST_LINE: Final = 1000


class Reply(NamedTuple):
    text: str
    quits: bool = False
    failed: bool = False  # it was not done: not understood, or no such service


def completions(line: str) -> list[str]:
    """What the last word of a line may become."""
    words = line.split()
    if not words or (len(words) == 1 and not line.endswith(" ")):
        return [word for word in WORDS if word.startswith(words[0] if words else "")]
    begun = words[1] if len(words) > 1 else ""
    if len(words) > 2 or (len(words) == 2 and line.endswith(" ")):
        return []
    return [word for word in WORDS.get(words[0], ()) if word.startswith(begun)]


class Console:
    """Commands for one supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def answer(self, line: str) -> Reply:
        """Carry out one line. Never raises for what was typed."""
        try:
            words = shlex.split(line[:LONGEST_LINE])
        except ValueError as error:
            return Reply(f"cannot read that: {error}", failed=True)
        match words:
            case []:
                return Reply("")
            case ["quit" | "exit"]:
                return Reply("bye", quits=True)
            case ["help" | "?"]:
                return Reply(self._help())
            case ["status"]:
                return Reply(table(await self._supervisor.look()))
            case ["broker", "list"]:
                return Reply(table(one for one in await self._supervisor.look() if one.kind == "broker"))
            case ["broker", ("start" | "stop" | "restart") as action, number]:
                return await self._broker(action, number)
            case ["broker", "start" | "stop" | "restart"]:
                return Reply(f"which broker? broker {words[1]} N", failed=True)
            case [("producer" | "consumer") as kind, ("start" | "stop" | "restart") as action]:
                found = self._supervisor.find(kind)
                return await _act(found, action) if found else Reply(f"no {kind} service runs here", failed=True)
            case ["restart", "all"]:
                return await self._restart_all()
        return Reply(_misunderstood(words), failed=True)

    def _help(self) -> str:
        there = {one.service.kind for one in self._supervisor.watched}
        missing = {"producer", "consumer"} - there
        return "\n".join(f"{words:<30}{what}" for words, what in HELP if words.split()[0] not in missing)

    async def _broker(self, action: str, number: str) -> Reply:
        found = self._supervisor.find("broker", int(number)) if number.isdecimal() and len(number) < 10 else None
        if found is None:
            numbers = [one.service.number for one in self._supervisor.watched if one.service.kind == "broker"]
            return Reply(f"no broker {number}; there are {numbers[0]} to {numbers[-1]}", failed=True)
        return await _act(found, action)

    async def _restart_all(self) -> Reply:
        lines, failed = [], False
        for one in self._supervisor.watched:
            lines.append((await _act(one, "restart")).text)
            if not await self._supervisor.until_ready(one):
                lines.append(f"{one.service.name} is not ready: {one.last_words()}")
                failed = True
        return Reply("\n".join(lines), failed=failed)


async def _act(one: Watched, action: str) -> Reply:
    acts: dict[str, Callable[[Watched], Awaitable[str]]] = {"start": _start, "stop": _stop, "restart": _restart}
    return Reply(f"{one.service.name} {await acts[action](one)}")


async def _start(one: Watched) -> str:
    started = await one.start(announce=True)
    return f"is starting (process {one.pid})" if started else f"runs already (process {one.pid})"


async def _stop(one: Watched) -> str:
    return "has stopped" if await one.stop() else "was stopped already"


async def _restart(one: Watched) -> str:
    await one.restart()
    return f"is starting again (process {one.pid})"


def _misunderstood(words: Sequence[str]) -> str:
    first = words[0]
    if first not in WORDS:
        return f"no command {first!r}{suggestion(first, WORDS)}; try: help"
    follows = WORDS[first]
    if follows:
        return f"{first} what? {', '.join(f'{first} {word}' for word in follows)}"
    return f"{first} stands alone"


def table(looks: Iterable[Look]) -> str:
    """Plain text, for a terminal or a TCP line."""
    rows = [("SERVICE", "ADDRESS", "STATE", "PROCESS", "UP", "RESTARTS", "LAST EXIT")]
    for look in looks:
        last = "-" if look.last_exit is None else str(look.last_exit)
        pid = "-" if look.pid is None else str(look.pid)
        rows.append((look.name, look.address, look.state, pid, _span(look.lived_s), str(look.restarts), last))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _span(seconds: float) -> str:
    whole = int(seconds)
    if not whole:
        return "-"
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"
