"""The tests in parts, several at a time.

    python tests/run.py [spark] [PYTEST OPTION...]

Without a word: all that `make test` runs, three parts at a time: the parts wait (for processes, clients, clocks) about
as much as they compute, so that three keep two cores busy. With `spark`: the tests that start Spark, two parts at a
time, one session in each. The longest parts begin first. A part's output comes when it has ended, that of those which
failed at the very end. The exit code is 0 if all passed.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

HERE = Path(__file__).parent
REST = "the rest"  # so that no test is forgotten


class Part(NamedTuple):
    name: str
    paths: Sequence[str] = ()


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


def main() -> int:
    options, home, parts, at_once = sys.argv[1:], HERE, PARTS, 3
    if options[:1] == ["spark"]:
        options, home, parts, at_once = ["-m", "java and not slow", *options[1:]], HERE / "spark", SPARK_PARTS, 2
    begun = time.monotonic()
    running: set[subprocess.Popen[bytes]] = set()

    def run(part: Part) -> tuple[Part, int, float, BinaryIO]:
        started = time.monotonic()
        print(f"-- {part.name} begins", flush=True)
        output = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the part has ended
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *options, *chosen(part, parts, home)],
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process:
            running.add(process)
        return part, process.returncode, time.monotonic() - started, output

    failed = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as lanes:
        try:
            for done in concurrent.futures.as_completed([lanes.submit(run, part) for part in parts]):
                if done.result()[1]:
                    failed.append(done.result())
                else:
                    show(*done.result())
        except BaseException:
            lanes.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    for each in failed:
        show(*each)
    names = ", ".join(part.name for part, *_ in failed)
    print(f"{'failed: ' + names if failed else 'all passed'}, in {time.monotonic() - begun:.0f} s")
    return bool(failed)


def chosen(part: Part, parts: Sequence[Part], home: Path) -> list[str]:
    if part.name != REST:
        return [str(HERE / path) for path in part.paths]
    return [str(home), *(f"--ignore={HERE / path}" for each in parts for path in each.paths)]


def show(part: Part, code: int, seconds: float, output: BinaryIO) -> None:
    print(f"== {part.name}: {'passed' if code == 0 else f'failed ({code})'} after {seconds:.0f} s", flush=True)
    with output:
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        os._exit(130)
