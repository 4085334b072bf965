"""The whole suite in two lanes, side by side, of about the same length.

    python tests/run.py [PYTEST OPTION...]

The second lane's output comes when the first has ended. The exit code is 0 if both passed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

SECOND = (
    "tests/cluster",
    "tests/isr",
    "tests/raft",
    "tests/ring",
    "tests/sim",
    "tests/storage",
    "tests/supervisor",
    "tests/swim",
    "tests/txn",
)


def main() -> int:
    pytest = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:]]
    with tempfile.TemporaryFile() as later:
        second = subprocess.Popen([*pytest, *SECOND], stdout=later, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*pytest, *(f"--ignore={path}" for path in SECOND)], check=False).returncode
            other = second.wait()
        finally:
            second.kill()
        later.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(later.read())
    return first or other


if __name__ == "__main__":
    sys.exit(main())
