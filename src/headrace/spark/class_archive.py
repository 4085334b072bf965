"""Spark's Java classes, kept as Java has them in memory (class data sharing): Spark starts faster.

Rules:
- It is made when somebody asks for it (`headrace pipeline prepare`), for it takes a minute and some 200 MB.
- It lies in the environment of this Python, and is gone with it. Its name tells the Java and the Spark that it is for.
- Java is the judge of whether an archive fits. One that does not is left alone, and all goes as without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace.core.errors import HeadraceError

_USE: Final = "-XX:SharedArchiveFile"
_MAKE: Final = "-XX:ArchiveClassesAtExit"


def archive_path(java: str) -> Path:
    """Where the archive for a Java (its home) and the installed Spark lies, or would lie."""
    program = Path(java, "bin", "java").resolve()
    with program.open("rb") as file:  # it may be a script of ours, which is written again at every start
        beginning = file.read(4096)
    facts = (str(program), program.stat().st_size, beginning, _spark_home(), package_version("pyspark"))
    name = hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
    return Path(sys.prefix, "share", "headrace", f"spark-{name}.jsa")


def is_there(java: str) -> bool:
    return archive_path(java).exists()


def with_archive(java: str, options: str) -> str:
    """Options for Java, with the archive if there is one, unless they name another."""
    if _USE in options or _MAKE in options or not is_there(java):
        return options
    return f"{options} {_quoted(_using(archive_path(java)))}"


@contextmanager
def making(java: str) -> Iterator[str]:
    """The options for a Java that is to end inside: what it then leaves becomes the archive. Raises HeadraceError."""
    path = archive_path(java)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("*.jsa*"):
            old.unlink(missing_ok=True)
    try:
        on_top = _quoted(f"{_MAKE}={half}")
        if not _starts(java, "-Xshare:on"):  # a Java as it comes from PyPI: the archive of its own classes is missing
            if not _starts(java, "-Xshare:dump", f"{_USE}={_below(path)}"):
                raise HeadraceError(f"the Java in {java} cannot keep classes; Spark starts as before")
            on_top = f"{_quoted(f'{_USE}={_below(path)}')} {on_top}"
        yield on_top
        if not half.exists() or not _starts(java, _using(path, half)):
            raise HeadraceError(f"the Java in {java} kept nothing that it can use; Spark starts as before")
        with _writing(path):
            with half.open("rb") as file:
                os.fsync(file.fileno())  # Java trusts what it finds: half an archive would be the end of it
            half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _below(path: Path) -> Path:
    """The archive of Java's own classes, if Java came without."""
    return path.with_name(f"java-{path.name}")


def _using(path: Path, made: Path | None = None) -> str:
    made = made or path
    return f"{_USE}={_below(path)}:{made}" if _below(path).exists() else f"{_USE}={made}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HeadraceError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _starts(java: str, *options: str) -> bool:
    return subprocess.run([Path(java, "bin", "java"), *options, "-version"], capture_output=True).returncode == 0


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option  # Spark splits at spaces as a shell does


def _spark_home() -> str:
    found = find_spec("pyspark")
    own = "" if found is None or found.origin is None else str(Path(found.origin).parent)
    return os.environ.get("SPARK_HOME", own)
