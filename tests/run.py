"""The tests in two lanes, side by side, of about the same length.

    python tests/run.py [spark] [PYTEST OPTION...]

Without a word: all that `make test` runs. With `spark`: the tests that start Spark, one session in each lane. The
second lane's output comes when the first has ended. The exit code is 0 if both passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

SECOND = (
    "tests/cluster",
    "tests/raft",
    "tests/sim",
    "tests/spark",
    "tests/storage",
    "tests/txn",
)
SECOND_WITH_SPARK = (
    "tests/spark/test_letters.py",
    "tests/spark/test_pipeline.py",
    "tests/spark/test_query.py",
    "tests/spark/test_stream_source.py",
)


def main() -> int:
    options, home, elsewhere = sys.argv[1:], "tests", SECOND
    if options[:1] == ["spark"]:
        options, home, elsewhere = ["-m", "java and not slow", *options[1:]], "tests/spark", SECOND_WITH_SPARK
    pytest = [sys.executable, "-m", "pytest", "-q", *options]
    with tempfile.TemporaryFile() as later:
        second = subprocess.Popen([*pytest, *elsewhere], stdout=later, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*pytest, home, *(f"--ignore={path}" for path in elsewhere)], check=False).returncode
            other = second.wait()
        finally:
            second.kill()
        later.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(later.read())
    return first or other


if __name__ == "__main__":
    sys.exit(main())
