"""Run a command on a machine that seems to be busy: its processes are stalled at random, one at a time.

    python tests/stalls.py [--seed N] [--longest SECONDS] COMMAND...
    python tests/stalls.py --seed 7 python tests/run.py

A test that fails only here waits for time where it should wait for an event. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

PAUSE_SECONDS = 0.7  # between two stalls, on average
STALL_SECONDS = 0.25  # on average
STOPPED, DEAD = "T", "Z"


def descendants(root: int) -> list[int]:
    """Those that run: whoever stopped a process on purpose will want to wake it up."""
    listed = subprocess.run(["ps", "-eo", "ppid=,pid=,stat="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[tuple[int, str]]] = {}
    for parent, pid, state in map(str.split, listed.splitlines()):
        children.setdefault(int(parent), []).append((int(pid), state))
    found, parents = [], [root]
    while parents:
        for pid, state in children.get(parents.pop(), []):
            parents.append(pid)
            if state[0] not in (STOPPED, DEAD):
                found.append(pid)
    return found


def stall(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(description="Stall the processes of a command at random.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=1.5, help="seconds (default: 1.5)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    with subprocess.Popen(given.command or parser.error("give a command")) as command:
        while command.poll() is None:
            time.sleep(dice.expovariate(1 / PAUSE_SECONDS))
            victim = dice.choice([command.pid, *descendants(command.pid)])
            stall(victim, min(dice.expovariate(1 / STALL_SECONDS), given.longest))
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
