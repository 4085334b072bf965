"""What a process has used so far: processor time and memory. Reads /proc; elsewhere psutil, if it is installed."""

from __future__ import annotations

import os
import platform
from typing import Any


def cpu_seconds(pid: int) -> float | None:
    """User and system time of all threads of a process; None where it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            fields = stream.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        process = _psutil_process(pid)
        if process is None:
            return None
        times = process.cpu_times()
        return float(times.user + times.system)


def resident_bytes(pid: int) -> int | None:
    """Memory of a process; None where it cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        process = _psutil_process(pid)
        return None if process is None else int(process.memory_info().rss)


def _psutil_process(pid: int) -> Any | None:
    try:
        import psutil

        return psutil.Process(pid)
    except Exception:  # not installed, or the process is gone
        return None


def description() -> dict[str, Any]:
    """The machine, as far as it matters to figures."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
