"""The tests in parts, several at a time.

    python tests/run.py [spark] [PYTEST OPTION...]

Without a word: all that `make test` runs, three parts at a time: the parts wait (for processes, clients, clocks) about
as much as they compute, so that three keep two cores busy. With `spark`: the tests that start Spark, two parts at a
time, one session in each. The longest parts begin first. A part's output is shown when it has ended, that of the parts
which failed at the very end.

What failed runs once more, alone and in order, when all parts have ended. A test that passes then is flaky: it is named
in the last lines and in `build/flaky.jsonl` (its name, its first error, the seed of its properties). A flaky test is a
bug to be mended, and no reason to refuse a change: the exit code is 0 if at most three tests were flaky and none
failed twice.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

HERE = Path(__file__).parent
REST = "the rest"  # so that no test is forgotten
MOST_FLAKY = 3
FAILURES = "TEST_FAILURES_FILE"  # the file to which conftest.py writes them
SEED = "HYPOTHESIS_RANDOM"  # of properties that try other examples than usual; 1: draw one
SOME_FAILED = 1  # pytest's code; higher ones mean that it could not run the tests


class Part(NamedTuple):
    name: str
    paths: Sequence[str] = ()


class Result(NamedTuple):
    part: Part
    code: int
    seconds: float
    output: BinaryIO
    failures: list[dict[str, str]]  # `name` and `error` of each test that failed


PARTS = (
    Part("spark", ["spark"]),
    Part("simulation", ["sim"]),
    Part(REST),
    Part("processes", ["e2e", "cluster", "supervisor", "testing"]),
    Part("clients", ["clients"]),
    Part("logs", ["storage", "raft", "txn"]),
)
SPARK_PARTS = (
    Part(
        "streams",
        ["spark/test_letters.py", "spark/test_pipeline.py", "spark/test_query.py", "spark/test_stream_source.py"],
    ),
    Part(REST),
)


class Suite:
    """The parts of the tests below `home`, and the folder in which each part has one of its own."""

    def __init__(self, home: Path, parts: Sequence[Part], options: Sequence[str], scratch: Path) -> None:
        self._home = home
        self._parts = parts
        self._options = options
        self._scratch = scratch
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, part: Part) -> Result:
        print(f"-- {part.name} begins", flush=True)
        return self._pytest(part, [*self._options, *self._paths(part)])

    def run_again(self, failures: Sequence[dict[str, str]]) -> Result:
        """Alone and in order, whatever the options would leave out."""
        names = [each["name"] for each in failures]
        print(f"-- once more, alone: {', '.join(names)}", flush=True)
        return self._pytest(Part("once more"), ["-m", "", *names])

    def _pytest(self, part: Part, arguments: Sequence[str]) -> Result:
        started = time.monotonic()
        folder = self._scratch / part.name.replace(" ", "-")
        folder.mkdir()
        failures = folder / "failures.jsonl"
        output = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the part has ended
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", f"--basetemp={folder / 'tmp'}", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, FAILURES: str(failures)},
        ) as process:
            self._running.add(process)
        found = [json.loads(line) for line in failures.read_text().splitlines()] if failures.exists() else []
        return Result(part, process.returncode, time.monotonic() - started, output, found)

    def _paths(self, part: Part) -> list[str]:
        if part.name != REST:
            return [str(HERE / path) for path in part.paths]
        return [str(self._home), *(f"--ignore={HERE / path}" for each in self._parts for path in each.paths)]

    def run_all(self, at_once: int) -> list[Result]:
        """Those parts that failed; what the others printed is shown."""
        failed = []
        with concurrent.futures.ThreadPoolExecutor(at_once) as lanes:
            try:
                for done in concurrent.futures.as_completed([lanes.submit(self.run, part) for part in self._parts]):
                    if done.result().code:
                        failed.append(done.result())
                    else:
                        show(done.result())
            except BaseException:
                lanes.shutdown(wait=False, cancel_futures=True)
                for process in self._running:
                    process.terminate()
                raise
        return failed


def main(options: list[str], home: Path = HERE, parts: Sequence[Part] = PARTS, at_once: int = 3) -> int:
    if options[:1] == ["spark"]:
        options, home, parts, at_once = ["-m", "java and not slow", *options[1:]], HERE / "spark", SPARK_PARTS, 2
    begun = time.monotonic()
    seed = os.environ.get(SEED, "")
    if seed:
        seed = str(random.randrange(1 << 32)) if seed == "1" else seed
        print(f"-- properties try examples of seed {seed}: {SEED}={seed} tries them again", flush=True)
        options = [*options, f"--hypothesis-seed={seed}"]
    with tempfile.TemporaryDirectory(prefix="headrace-tests-", ignore_cleanup_errors=True) as scratch:
        suite = Suite(home, parts, options, Path(scratch))
        failed = suite.run_all(at_once)
        for each in failed:
            show(each)
        failures = [failure for each in failed for failure in each.failures]
        verdict = f"failed: {', '.join(each.part.name for each in failed)}" if failed else "all passed"
        may_be_flaky = all(each.code == SOME_FAILED and each.failures for each in failed)
        if failed and may_be_flaky and len(failures) <= MOST_FLAKY:
            again = suite.run_again(failures)
            show(again)
            if again.code == 0:
                failed = []
                verdict = f"all passed, {len(failures)} of them not at once"
                report(failures, seed)
    print(f"{verdict}, in {time.monotonic() - begun:.0f} s")
    return bool(failed)


def report(flaky: Sequence[dict[str, str]], seed: str) -> None:
    """Name the flaky tests, here and in a file: each is a bug of the test or of what it tests."""
    path = Path("build", "flaky.jsonl")
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        for each in flaky:
            print(f"flaky: {each['name']}: {each['error']}")
            file.write(json.dumps({**each, "seed": seed or "fixed"}) + "\n")
    print(f"flaky tests are bugs: see {path}")


def show(result: Result) -> None:
    how = "passed" if result.code == 0 else f"failed ({result.code})"
    print(f"== {result.part.name}: {how} after {result.seconds:.0f} s", flush=True)
    with result.output as output:
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    sys.stdout.flush()


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # the parts must not go on without us
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        os._exit(130)
