"""A Spark session with good manners.

Rules:
- One session per process: a running one is returned as it is.
- Nothing but our own words reaches the terminal: the JVM and the Python workers write to a log file, and only errors.
- Workers run this Python, and local ones are forked with the decoder ready. Arrow is on. `local[N]` retries a failed
  task, as a cluster does.
- The JVM reads what the workers made: Arrow does not check every byte of it again, and a local session's collector
  is the one for throughput. Together a third of the CPU time of a row (docs/performance.md).
- Checkpoints of local masters are written by plain rename: three times faster, and one driver is all there is.
- What is missing (pyspark, its version, Java) is one sentence with its remedy.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError
from headrace.spark.class_archive import is_there, with_archive
from headrace.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_PYSPARK: Final = (4, 2)
TASK_FAILURES: Final = 4
END_SECONDS: Final = 300.0
DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"
_RENAMING: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_QUIET: Final = Path(__file__).with_name("log4j2.properties")
_UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true"
_COLLECTOR: Final = "-XX:+UseParallelGC"
_LAST_LINES: Final = 3
_WORKER: Final = """#!/bin/sh
kept=
IFS=:
for each in $PYTHONPATH; do
  case "$each" in */pyspark.zip|*/py4j-*-src.zip|*/spark-core_*.jar) ;; *) kept="$kept${{kept:+:}}$each" ;; esac
done
unset IFS PYTHONDONTWRITEBYTECODE
export PYTHONPATH="$kept"
exec "{python}" "$@"
"""


def spark_session(
    name: str,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    say: Callable[[str], None] | None = None,
    log_file: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """The session of this process, started if there is none. `say` is told how long that took.

    `conf` wins over everything that is set here. Raises ConfigError.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    began = time.monotonic()
    if say is not None:
        say(f"starting Spark {package_version('pyspark')} on {master} ...")
    log = Path(log_file) if log_file is not None else _log_path()
    session = _start(settings(name, master, conf or {}), log)
    if say is not None:
        advice = "" if is_there(java_home()) else "; faster after: headrace pipeline prepare"
        say(f"Spark is up after {time.monotonic() - began:.1f} s (its log: {log}{advice})")
    return session


@contextmanager
def passing_session(name: str, conf: Mapping[str, str], log_file: Path) -> Iterator[SparkSession]:
    """A local session whose Java has ended afterwards: in peace if all went well, and killed if not."""
    session = spark_session(name, "local[2]", conf, log_file=log_file)
    gateway: Any = session.sparkContext._gateway
    signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's would talk to Java first
    try:
        yield session
        session.stop()
        gateway.proc.stdin.close()  # what Spark's Java waits for
        gateway.proc.wait(END_SECONDS)
    except BaseException:
        gateway.proc.kill()
        raise


@cache
def quiet_errors() -> None:
    """For programs that tell errors in a sentence: PySpark does not log tracebacks as well.

    It would for a Java that has ended, and for a query that names what is not there.
    """
    screen = logging.StreamHandler()
    noise = ("Exception while sending command", "KeyboardInterrupt while sending command")
    screen.addFilter(lambda record: not record.getMessage().startswith(noise))
    logging.getLogger().addHandler(screen)
    check_pyspark()
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def settings(name: str, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Spark's configuration for a session of ours."""
    local = is_local(master)
    found = {
        "spark.app.name": name,
        "spark.master": with_retries(master),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
    }
    if local:
        # Shuffles of a laptop need no 200 tasks, and nothing has to be reachable from other machines.
        found |= {
            "spark.sql.streaming.checkpointFileManagerClass": _RENAMING,
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": "headrace.spark.daemon",
            # Spark makes this directory at every start: not where the user happens to be.
            "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/headrace-spark-warehouse-{os.getuid()}",
        }
    found.update(conf)
    given = conf.get(DRIVER_OPTIONS, "")
    own = [f"-Dlog4j2.configurationFile={_QUIET.as_uri()}", _UNCHECKED_ARROW]
    if local and not re.search(r"-XX:\+Use\w+GC\b", given):  # Java does not take two
        own.append(_COLLECTOR)
    # Ours first: of two equal properties Java takes the last.
    found[DRIVER_OPTIONS] = " ".join([*own, given]).rstrip()
    found[EXECUTOR_OPTIONS] = f"{_UNCHECKED_ARROW} {conf.get(EXECUTOR_OPTIONS, '')}".rstrip()
    return found


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def worker_python() -> str:
    """This Python, for Spark's workers and planners on this machine.

    Spark puts its own zip of pyspark before everything else, and a module in a zip is compiled at every start; so does
    a jar, whose thousands of names are read in vain. The installed copy is the same and takes a quarter of the time,
    so a script leaves them out.
    """
    place = Path(tempfile.gettempdir()) / f"headrace-python-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        return sys.executable
    text = _WORKER.format(python=sys.executable)
    program = place / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    if not program.exists():
        half = place / f"{program.name}.{os.getpid()}"
        half.write_text(text, encoding="utf-8")
        half.chmod(0o700)
        half.replace(program)
    return str(program)


def with_retries(master: str) -> str:
    """`local` and `local[N]` with as many attempts per task as a cluster has: Spark's default there is one."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*\]", master)
    return f"local[{found[1]},{TASK_FAILURES}]" if found else master


def check_pyspark() -> None:
    """Raises ConfigError if Spark is not installed, or is too old."""
    try:
        found = package_version("pyspark")
    except PackageNotFoundError:
        try:
            found = package_version("pyspark-client")
        except PackageNotFoundError:
            raise ConfigError("Spark is not installed; try: pip install 'headrace[spark]'") from None
        raise ConfigError("pyspark-client has no Spark in it; try: pip install 'headrace[spark]'") from None
    if tuple(int(each) for each in re.findall(r"\d+", found)[:2]) < OLDEST_PYSPARK:
        wanted = ".".join(map(str, OLDEST_PYSPARK))
        raise ConfigError(f"pyspark {found} is too old, {wanted} is needed; try: pip install -U 'headrace[spark]'")


def _log_path() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-spark-{os.getuid()}-{os.getpid()}.log"


def _start(conf: Mapping[str, str], log: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java = java_home()
    # On a cluster, Python may lie elsewhere: who knows where has said so.
    elsewhere = os.environ.get("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = worker_python() if is_local(conf["spark.master"]) else elsewhere
    os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()  # with which Spark plans, here on the driver's machine
    # Workers must find what this process finds, also when the package is not installed but on the path.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*_source_paths(), *_python_path()]))
    whole = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    whole.set(DRIVER_OPTIONS, with_archive(java, conf[DRIVER_OPTIONS]))
    log.parent.mkdir(parents=True, exist_ok=True)
    gateway: Any = None
    with log.open("ab") as sink:
        try:
            gateway = launch_gateway(whole, {"stdout": sink, "stderr": sink})  # type: ignore[no-untyped-call]
            SparkContext(conf=whole, gateway=gateway)
            return SparkSession.builder.getOrCreate()
        except BaseException as error:
            if gateway is not None:
                gateway.proc.kill()
            if not isinstance(error, Exception):
                raise
            raise ConfigError(f"Spark did not start: {_reason(log, error)} (its log: {log})") from None


def _source_paths() -> list[str]:
    return [str(Path(__file__).parents[2])]


def _python_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _reason(log: Path, error: Exception) -> str:
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    told = [line for line in lines if line and not line.startswith(("at ", "WARNING", "..."))]
    first = str(error).strip().splitlines() or [type(error).__name__]
    return " / ".join(told[-_LAST_LINES:]) or first[0]
