"""The campaign, from the command line. Ends with 1 if a history failed, and says how to run that one again."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from headrace.testing.disk_histories.campaign import HistoryError, run, totals
from headrace.testing.disk_histories.plan import plan

HISTORIES = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.disk_histories", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="one node, or a cluster of three")
    parser.add_argument("--seed", type=int, help="one history only")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="copy the files of histories that failed into this folder")
    options = parser.parse_args()
    if find_spec("kafka") is None:
        parser.error("the judge reads with kafka-python, which is not installed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process of a history outlives us
    if options.seed is not None:
        return _one(options.seed, options.nodes, options.keep)
    seeds = list(range(options.first, options.first + options.histories))
    begun = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda seed: _apart(seed, options.nodes, options.keep), seeds))
    failed = [seed for seed, code in zip(seeds, codes, strict=True) if code]
    print(f"{len(seeds) - len(failed)} of {len(seeds)} histories kept all promises; {time.monotonic() - begun:.0f} s")
    print(f"faults in all: {dict(totals([plan(seed, nodes=options.nodes) for seed in seeds]))}")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


def _one(seed: int, nodes: int, keep: Path | None) -> int:
    try:
        print(run(plan(seed, nodes=nodes), keep=keep), flush=True)
    except HistoryError as error:
        print(error, flush=True)
        return 1
    return 0


def _apart(seed: int, nodes: int, keep: Path | None) -> int:
    """A history in a process of its own, so that several can run side by side."""
    words = ["--keep", str(keep)] if keep is not None else []
    command = [sys.executable, "-m", "headrace.testing.disk_histories", "--nodes", str(nodes), "--seed", str(seed)]
    done = subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
