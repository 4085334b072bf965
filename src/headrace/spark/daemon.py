"""Spark's parent of Python workers, which has the decoder ready before it forks them: `spark.python.daemon.module`.

Rules:
- Nothing that starts threads may be loaded before a fork: no pyarrow, no pandas.
- Nothing may be written to stdout before Spark's own words, and no failure here may keep workers from starting.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.daemon import manager

READS: Final = "pyspark.worker"  # the kind of worker that runs tasks


def prepare(kind: str) -> None:
    if kind != READS:
        return
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads would not survive the fork
    try:
        from headrace.spark import kernel

        kernel.load()
    except Exception as error:
        print(f"headrace: the decoder is loaded by every worker on its own ({error})", file=sys.stderr)
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before


if __name__ == "__main__":
    prepare(sys.argv[1] if len(sys.argv) > 1 else READS)
    manager()
