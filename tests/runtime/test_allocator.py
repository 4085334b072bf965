"""The allocator's tuning."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_memory_is_kept_and_used_again():
    code = (
        "import resource\nfrom headrace.runtime.allocator import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(50): bytearray(4 << 20)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "before = faults(); told = keep_freed_memory(); faults(); print(told, before > 10 * faults())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True"]
