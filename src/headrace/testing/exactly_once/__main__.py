"""The campaign, from the command line. Ends with 1 if a history failed, and says how to run that one again."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from headrace.testing.exactly_once.history import HistoryError, run

HISTORIES = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.exactly_once", description=__doc__)
    parser.add_argument("--seed", type=int, help="one history only")
    parser.add_argument("--histories", type=int, default=HISTORIES, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first (default: %(default)s)")
    parser.add_argument("--proxy", action="store_true", help="lose, delay and double requests and answers as well")
    parser.add_argument("--nodes", type=int, default=1, help="a cluster of so many (default: one broker)")
    parser.add_argument("--keep", type=Path, help="copy the files of histories that failed into this folder")
    options = parser.parse_args()
    if options.nodes not in (1, *range(3, 10)) or (options.proxy and options.nodes > 1):
        parser.error("--nodes takes 1, or 3 to 9; --proxy is for one broker")
    seeds = range(options.first, options.first + options.histories) if options.seed is None else [options.seed]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process of a history outlives us
    begun, failed, total = time.monotonic(), [], Counter[str]()
    for seed in seeds:
        try:
            outcome = run(seed, proxy=options.proxy, nodes=options.nodes, keep=options.keep)
        except HistoryError as error:
            failed.append(seed)
            print(error, flush=True)
        else:
            print(outcome, flush=True)
            total += outcome.steps + outcome.blows + outcome.mishaps + Counter(orders=outcome.orders)
    print(f"{len(seeds) - len(failed)} of {len(seeds)} histories kept all promises; {time.monotonic() - begun:.0f} s")
    print(f"in all: {dict(sorted(total.items()))}")
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
