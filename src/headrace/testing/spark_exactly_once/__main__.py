"""The campaign, from the command line. Ends with 1 if a history failed, and says how to run that one again."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from headrace.testing.spark_exactly_once.history import KINDS, History, HistoryError

HISTORIES = 20
PAIRS = (("exactly_once", "letters"), ("exactly_once_partitioned", "table"))


def plan(seed: int, folder: Path, blows: int) -> History:
    """Two flows in one driver: a blow hits both."""
    kinds = [KINDS[index % len(KINDS)] for index in range(blows)]
    per_batch = random.Random(seed).choice((200, 400, 800))
    return History(folder, seed, PAIRS[seed % len(PAIRS)], tuple(kinds), per_batch=per_batch)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.spark_exactly_once", description=__doc__)
    parser.add_argument("--seed", type=int, help="one history only")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first (default: %(default)s)")
    parser.add_argument("--blows", type=int, default=5, help="per history (default: %(default)s)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.histories) if options.seed is None else [options.seed]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process of a history outlives us
    begun, failed, total = time.monotonic(), [], Counter[str]()
    for seed in seeds:
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            history = plan(seed, Path(folder), options.blows)
            try:
                history.run()
                print(f"{history}; {time.monotonic() - since:.0f} s", flush=True)
            except HistoryError as error:
                failed.append(seed)
                print(f"FAILED: {error}", flush=True)
        total += Counter(history.done) + Counter(records=history.records, starts=history.starts, killed=history.killed)
    print(f"{len(seeds) - len(failed)} of {len(seeds)} histories kept all promises; {time.monotonic() - begun:.0f} s")
    print(f"in all: {dict(sorted(total.items()))}")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
