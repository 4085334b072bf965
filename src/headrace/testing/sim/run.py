"""Many histories, on all cores; the first that fails is told, with the command that replays it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.pool import Pool
from types import FrameType
from typing import Final, NamedTuple, TextIO

from headrace.testing.sim.variants import VARIANTS
from headrace.testing.sim.world import Options, Report, World

NODES: Final = (1, 3, 3, 1, 5, 3, 1, 3, 3, 1)  # of a history whose seed has this last digit
JOBS: Final = min(os.cpu_count() or 1, 4)  # a container may see more cores than it gets
LONGEST_CPU_S: Final = 120  # a history takes about one


class SpinningError(KeyboardInterrupt):
    """A history goes round in a circle. Of a kind that no task keeps to itself."""


def simulate(
    seed: int,
    *,
    nodes: int = 1,
    trace: bool = False,
    faults: bool = True,
    variant: str | None = None,
    rot: bool | None = None,
    plain: bool = False,
    programs: Sequence[str] = (),
) -> Report:
    """One history. Raises what it finds."""
    rot = variant == "truncate on bad CRC" if rot is None else rot
    programs = tuple(programs) or (VARIANTS[variant].programs if variant is not None else ())
    given = Options(seed, nodes, trace=trace, faults=faults, variant=variant, rot=rot, plain=plain, programs=programs)
    return World(given).run()


def nodes_of(seed: int) -> int:
    """How many nodes a history has, unless somebody says otherwise."""
    return NODES[seed % len(NODES)]


def replay_command(
    seed: int, nodes: int, variant: str | None = None, *, plain: bool = False, programs: Sequence[str] = ()
) -> str:
    more = (f" --variant {variant!r}" if variant else "") + (" --plain" if plain else "")
    more += f" --faults {','.join(programs)}" if programs else ""
    return f"python -m headrace.testing.sim --seed {seed} --nodes {nodes}{more}"


class Outcome(NamedTuple):
    """What became of one history."""

    seed: int
    facts: dict[str, int]
    fault: str  # and how to replay it; empty if all promises were kept


def attempt(seed: int, nodes: int | None = None, variant: str | None = None, programs: Sequence[str] = ()) -> Outcome:
    count = nodes or nodes_of(seed)
    try:
        with _bounded():
            return Outcome(seed, dict(simulate(seed, nodes=count, variant=variant, programs=programs).facts), "")
    except (Exception, SpinningError) as error:
        where = traceback.format_exc(limit=-4)
        replay = f"replay: {replay_command(seed, count, variant, programs=programs)}"
        return Outcome(seed, {}, f"seed {seed}: {type(error).__name__}: {error}\n{where}{replay}")


def workers(jobs: int) -> Pool:
    """Processes for `attempt`. They end with the block in which they are used, whatever they do then."""
    return multiprocessing.get_context("spawn").Pool(jobs, _leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def campaign(
    seeds: Iterable[int],
    *,
    nodes: int | None = None,
    variant: str | None = None,
    programs: Sequence[str] = (),
    out: TextIO = sys.stdout,
    keep_going: bool = False,
    jobs: int = 1,
) -> list[int]:
    """Run them all, with so many `nodes` or as many as their seeds say; the seeds that failed."""
    begun = time.perf_counter()
    failed: list[int] = []
    ran = 0
    facts: dict[str, int] = {}
    with ExitStack() as stack:
        run = stack.enter_context(workers(jobs)).imap if jobs > 1 else map
        for outcome in run(partial(attempt, nodes=nodes, variant=variant, programs=programs), seeds):
            ran += 1
            for name, times in outcome.facts.items():
                facts[name] = facts.get(name, 0) + times
            if outcome.fault:
                failed.append(outcome.seed)
                print(outcome.fault, file=out, flush=True)
                if not keep_going:
                    break
            if ran % 50 == 0:
                print(f"{ran} histories, {ran / (time.perf_counter() - begun):.2f} per second", file=out, flush=True)
    seconds = time.perf_counter() - begun
    size = f"of {nodes} node(s)" if nodes else "of 1, 3 and 5 nodes"
    print(f"{ran} histories {size}, {len(failed)} failed, {ran / seconds:.2f} per second", file=out)
    print(", ".join(f"{count} {name}" for name, count in sorted(facts.items())), file=out)
    return failed


@contextmanager
def _bounded() -> Iterator[None]:
    """Code that waits for nothing and never ends cannot be seen by a loop that it does not come back to."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SpinningError(f"no end after {LONGEST_CPU_S} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
