"""`python -m bench.spark_start`: how long Spark takes to start and to read a first record, with and without the
archive of its classes (`headrace pipeline prepare`, which has to be done before).

Sessions with and without it take turns, each in a process of its own. "Brisk" is the session of `make demo` (one
compiler, the small collector), "usual" the one that users get. Medians; Java's CPU time suffers least from a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from headrace import Broker
from headrace.client import Producer
from headrace.spark.class_archive import is_there
from headrace.spark.java import java_home
from headrace.spark.session import DRIVER_OPTIONS, spark_session

KINDS = {"brisk": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData", "usual": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", metavar="JAVA_OPTIONS", help="start once and tell, as JSON")
    given = parser.parse_args()
    if given.once is not None:
        print(json.dumps(once(given.once)))
        return
    java = java_home()
    if not is_there(java):
        sys.exit("there is no archive yet; first: headrace pipeline prepare")
    without = f"-XX:SharedArchiveFile={Path(java, 'lib/server/classes.jsa')}"  # Java's own, which it takes by default
    print("| session | archive | Java's CPU | start | first read | classes |\n| --- | --- | --: | --: | --: | --: |")
    for kind, options in KINDS.items():
        turns: dict[str, list[dict[str, float]]] = {"no": [], "yes": []}
        for _ in range(given.rounds):
            for archive, found in turns.items():
                words = f"{options} {without if archive == 'no' else ''}".strip()
                command = [sys.executable, "-m", "bench.spark_start", f"--once={words}"]
                told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append(json.loads(told.splitlines()[-1]))
        for archive, found in turns.items():
            cpu, start, read, classes = (
                statistics.median(each[name] for each in found) for name in ("cpu", "start", "read", "classes")
            )
            print(f"| {kind} | {archive} | {cpu:.1f} s | {start:.1f} s | {read:.1f} s | {classes:,.0f} |", flush=True)


def once(options: str) -> dict[str, float]:
    with Broker() as broker:
        Producer(broker.bootstrap_servers).send_and_wait("orders", "one")
        began = time.monotonic()
        spark = spark_session("bench", "local[2]", {DRIVER_OPTIONS: options})
        up = time.monotonic()
        wanted = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders"}
        assert spark.read.format("headrace").options(**wanted).load().count() == 1
        done = time.monotonic()
        spent = psutil.Process(spark.sparkContext._gateway.proc.pid).cpu_times()
        beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getClassLoadingMXBean()
        classes = beans.getTotalLoadedClassCount()
        spark.stop()
    return {"cpu": spent.user + spent.system, "start": up - began, "read": done - up, "classes": classes}


if __name__ == "__main__":
    main()
