"""A few processes that put load on a broker at the same time.

Each prepares, says that it is ready, waits for the word, works, and sends back what it counted. They are spawned, not
forked (librdkafka has threads), ignore Ctrl-C (their parent ends them), and do not outlive the `with` block.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from headrace.core.errors import HeadraceError

PREPARE_SECONDS = 60.0
GRACE_SECONDS = 60.0


class LoadError(HeadraceError):
    """A measurement could not be made, or the broker answered with an error."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one process did: `done` requests or messages, bytes of them, and the time it took."""

    done: int
    bytes: int
    seconds: float
    latencies_s: tuple[float, ...] = ()


Work = Callable[..., Tally]  # work(start, **options): prepares, calls start(), works
Start = Callable[[], None]


@contextmanager
def crew(work: Work, options: Sequence[dict[str, Any]]) -> Iterator[Callable[[], list[Tally]]]:
    """Processes that are ready to work; call what this yields to let them go and to wait for what they did."""
    context = multiprocessing.get_context("spawn")
    members: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    try:
        for each in options:
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(theirs, work, each), daemon=True)
            process.start()
            theirs.close()
            members.append((process, ours))
        for _, pipe in members:
            _take(pipe, PREPARE_SECONDS)

        def go() -> list[Tally]:
            for _, pipe in members:
                pipe.send("go")
            return [_take(pipe, GRACE_SECONDS) for _, pipe in members]

        yield go
    finally:
        for member, pipe in members:
            pipe.close()
            member.join(0.2)
            if member.is_alive():
                member.kill()
            member.join()


def _take(pipe: Connection, seconds: float) -> Any:
    if not pipe.poll(seconds):
        raise LoadError(f"a load process was silent for {seconds:.0f} s")
    try:
        outcome = pipe.recv()
    except EOFError:
        raise LoadError("a load process died") from None
    if isinstance(outcome, str) and outcome.startswith("failed: "):
        raise LoadError(outcome.removeprefix("failed: "))
    return outcome


def _member(pipe: Connection, work: Work, options: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def start() -> None:
        pipe.send("ready")
        pipe.recv()

    try:
        pipe.send(work(start, **options))
    except (EOFError, BrokenPipeError):
        pass  # the parent gave up
    except LoadError as error:
        pipe.send(f"failed: {error}")
    except Exception:
        pipe.send(f"failed: {traceback.format_exc()}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    if not ordered:
        raise LoadError("nothing was measured")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


now = time.perf_counter
