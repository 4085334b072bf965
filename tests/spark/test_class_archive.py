"""The archive of Spark's Java classes: which is used, and how it comes to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError
from headrace.spark.class_archive import archive_path, making, with_archive


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The home of a Java, in an environment of its own."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an environment"))
    return install(tmp_path / "java")


def install(home: Path, program: str = "exit 0") -> str:
    """A Java that does what a test needs."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    (home / "bin" / "java").chmod(0o700)
    return str(home)


def make(java: str) -> None:
    with making(java) as options:
        leave(options)


def leave(options: str) -> None:
    """What Java does at its end."""
    [made] = re.findall(r"-XX:ArchiveClassesAtExit=([^\"]+)", options)
    Path(made).write_bytes(b"classes")


def test_every_java_and_every_spark_has_its_own_archive(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {archive_path(java), archive_path(install(tmp_path / "other"))}
    install(Path(java), "exit 0 # a newer one")
    found.add(archive_path(java))
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    found.add(archive_path(java))
    assert len(found) == 4


def test_a_script_that_is_written_again_is_the_same_java(java: str) -> None:
    before = archive_path(java)
    install(Path(java))
    assert archive_path(java) == before


def test_java_gets_an_archive_only_if_there_is_one(java: str) -> None:
    assert with_archive(java, "-Xmx1g") == "-Xmx1g"
    make(java)
    assert with_archive(java, "-Xmx1g") == f'-Xmx1g "-XX:SharedArchiveFile={archive_path(java)}"'


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=mine", "-Xmx1g -XX:ArchiveClassesAtExit=mine"])
def test_who_names_an_archive_gets_no_other(java: str, own: str) -> None:
    make(java)
    assert with_archive(java, own) == own


def test_a_new_archive_takes_the_place_of_those_that_nothing_reads_any_more(java: str) -> None:
    make(java)
    old = archive_path(java)
    install(Path(java), "exit 0 # a newer one")
    make(java)
    assert not old.exists() and list(old.parent.iterdir()) == [archive_path(java)]


def test_a_java_that_keeps_nothing_is_told(java: str) -> None:
    with pytest.raises(HeadraceError, match="kept nothing that"), making(java):
        pass
    assert with_archive(java, "-Xmx1g") == "-Xmx1g"


def test_a_java_without_an_archive_of_its_own_gets_one(java: str) -> None:
    install(Path(java), 'case "$1" in -Xshare:on) exit 1;; -Xshare:dump) echo own > "${2#*=}"; esac')
    make(java)
    below = archive_path(java).with_name(f"java-{archive_path(java).name}")
    assert below.read_text() == "own\n"
    assert with_archive(java, "-Xmx1g") == f'-Xmx1g "-XX:SharedArchiveFile={below}:{archive_path(java)}"'


def test_a_java_that_cannot_keep_classes_is_told_at_once(java: str) -> None:
    install(Path(java), 'case "$1" in -Xshare:*) exit 1; esac')
    with pytest.raises(HeadraceError, match="cannot keep classes"):
        make(java)


def test_an_archive_with_which_java_does_not_start_is_not_kept(java: str) -> None:
    install(Path(java), 'case "$1" in -XX:SharedArchiveFile=*) exit 134; esac')
    with pytest.raises(HeadraceError, match="kept nothing that"):
        make(java)
    assert list(archive_path(java).parent.iterdir()) == []


def test_an_environment_that_cannot_be_written_is_told(java: str) -> None:
    Path(sys.prefix).write_text("not a directory")
    with pytest.raises(HeadraceError, match=r"cannot write .*not a directory"):
        make(java)


def test_an_interrupted_attempt_leaves_nothing_behind(java: str) -> None:
    def interrupted() -> None:
        with making(java) as options:
            leave(options)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(archive_path(java).parent.iterdir()) == []


@pytest.mark.slow
@pytest.mark.process
def test_a_prepared_spark_takes_its_classes_from_the_archive(quick: dict[str, str], tmp_path: Path) -> None:
    def run(program: str) -> str:
        here = f"import sys; sys.prefix = {str(tmp_path)!r}\n"
        found = subprocess.run([sys.executable, "-c", here + program], capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stderr

    assert "Spark starts from" in run("from headrace.cli.prepare import prepare; prepare()")
    assert "nothing to do" in run("from headrace.cli.prepare import prepare; prepare()")
    log = tmp_path / "classes.log"
    run(f"""
from headrace.spark.session import DRIVER_OPTIONS, passing_session
with passing_session("test", {{DRIVER_OPTIONS: "-Xlog:class+load:file={log}"}}, {str(tmp_path / "spark.log")!r}):
    pass
""")
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if " org.apache.spark." in line]
    own = [line for line in lines if "$$Lambda" not in line]  # those are made anew
    kept = [line for line in own if "shared objects file (top)" in line]
    assert len(own) > 1000 and len(kept) > 0.9 * len(own)
