"""`headrace pipeline prepare`: Spark starts faster from then on.

A small pipeline and a question run once, on a broker in memory, in a Java that keeps what it loaded.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import output

TOPICS = ("orders", "orders-clean", "orders-broken")
QUESTION = "select at, count(*) as orders, sum(amount) as amount from orders group by at order by orders desc"
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def prepare(
    again: Annotated[bool, typer.Option("--again", help="Also if it was done before.")] = False,
) -> None:
    """Make Spark start faster: done once, takes a minute, and some 200 MB beside this Python."""
    from headrace.spark.class_archive import archive_path, is_there, making
    from headrace.spark.java import java_home
    from headrace.spark.session import DRIVER_OPTIONS, passing_session, quiet_errors

    quiet_errors()
    java = java_home()
    path = archive_path(java)
    if is_there(java) and not again:
        output.note(f"nothing to do: {path} is there")
        return
    output.note("a small pipeline runs once, so that Java can keep what it loads (a minute) ...")
    with tempfile.TemporaryDirectory(prefix="headrace-prepare-") as folder, making(java) as option:
        options = {
            "spark.sql.shuffle.partitions": "1",
            DRIVER_OPTIONS: f"-XX:TieredStopAtLevel=1 {option}",  # what is compiled is not kept
        }
        with passing_session("headrace prepare", options, Path(folder, "spark.log")) as spark:
            rehearse(spark, Path(folder, "example"))
    output.note(f"Spark starts from {path} now ({output.size(path.stat().st_size)})")


def rehearse(spark: Any, folder: Path) -> None:
    """What people do with Spark here, once, on a few records."""
    from headrace import Broker
    from headrace.client import Admin, Producer
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.ready import example
    from headrace.spark.pipeline.runner import Runner
    from headrace.spark.query import Topics

    with Broker() as broker:
        address = broker.bootstrap_servers
        admin, producer = Admin(address), Producer(address)
        for topic in TOPICS:
            admin.create_topic(topic, partitions=1)
        for number in range(200):
            minute = number % 60
            order = {"id": number, "amount": 9.5, "at": f"2024-01-01T08:{minute:02}:00Z"}
            producer.send("orders", "broken" if number % 50 == 7 else json.dumps(order), key=str(number))
        producer.close()
        example(folder)
        pipeline = load(folder, {"HEADRACE_BOOTSTRAP": address})
        Runner(pipeline, folder, spark, once=True).run()
        for conf in ({}, UNCOMPILED):
            session = spark.newSession()
            for name, value in conf.items():
                session.conf.set(name, value)
            schemas = {"orders": "id long, amount double, at timestamp"}
            topics = Topics(session, address, archives={"orders": str(folder / "lake/orders")}, schemas=schemas)
            topics.sql(QUESTION).collect()
