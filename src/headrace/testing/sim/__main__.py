"""The command line of the simulation."""

from __future__ import annotations

import argparse
import sys

from headrace.testing.sim.programs import KINDS
from headrace.testing.sim.run import JOBS, campaign, nodes_of, simulate
from headrace.testing.sim.variants import VARIANTS


def _programs(text: str) -> tuple[str, ...]:
    names = tuple(KINDS) if text == "all" else tuple(text.split(","))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.sim", description="Simulate clusters.")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one and print what happens")
    parser.add_argument("--nodes", type=int, help="machines (default: 1, 3 or 5, by the last digit of the seed)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--jobs", type=int, default=JOBS, help="at a time (default: one per core, at most 4)")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument(
        "--plain", action="store_true", help="replay without what later histories have beyond the first"
    )
    parser.add_argument(
        "--faults", type=_programs, default=(), help=f"beside the usual ones: {','.join(KINDS)}, or all"
    )
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the broker on purpose")
    given = parser.parse_args()
    if given.seed is not None:
        how = {"trace": True, "faults": not given.calm, "plain": given.plain, "programs": given.faults}
        report = simulate(given.seed, nodes=given.nodes or nodes_of(given.seed), variant=given.variant, **how)
        print(f"seed {report.seed} holds: {report.turns} turns, {report.virtual_s:.1f} s, digest {report.digest}")
        return 0
    seeds = range(given.first, given.first + given.seeds)
    how_many = {"nodes": given.nodes, "jobs": given.jobs, "programs": given.faults}
    return 1 if campaign(seeds, variant=given.variant, keep_going=given.keep_going, **how_many) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
