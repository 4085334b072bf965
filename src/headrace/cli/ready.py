"""The ready-made pipelines of `headrace pipeline`: each command writes a pipeline's folder and runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.moments import moment_ms
from headrace.cli.options import BOOTSTRAP, Bootstrap
from headrace.cli.report import UsageError

Name = Annotated[str, typer.Option("--name", help="The pipeline's name; by default made from the topics.")]
Home = Annotated[Path | None, typer.Option("--folder", metavar="DIR", help="Its folder; default: its name, here.")]
Once = Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Only write the folder.")]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master.")]
Schema = Annotated[
    str, typer.Option("--schema", metavar="DDL", help="The fields of the JSON values: 'id long, amount double'.")
]
ToTopic = Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="Results go to this topic, exactly once.")]
ToTable = Annotated[str, typer.Option("--to-table", metavar="PATH", help="Results go to this Delta table.")]
DeadLetters = Annotated[
    str, typer.Option("--dlq", metavar="TOPIC", help="Records that do not decode go to this topic.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `headrace pipeline`."""
    for command in (archive, rollup, replay, enrich, dedup):
        app.command()(command)


def archive(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The Delta table: a directory or a URI.")],
    schema: Schema = "",
    name: Name = "",
    folder: Home = None,
    once: Once = False,
    no_run: NoRun = False,
    master: Master = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Archive topics in a Delta table, from their first record on.

    \b
    headrace pipeline archive orders payments --to /data/archive --once
    headrace table verify /data/archive --broker
    """
    from headrace.spark.pipeline import ready

    name = name or f"archive-{'-'.join(topics)}"[:64]
    where = to if "://" in to else str(Path(to).resolve())
    document = ready.archive(topics, where, broker=bootstrap, name=name, schema=schema)
    _go(document, f"Archive of {', '.join(topics)}", folder, once, no_run, master)


def rollup(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    schema: Schema,
    time: Annotated[str, typer.Option("--time", metavar="FIELD", help="The field with the time of the event.")],
    measure: Annotated[
        list[str], typer.Option("--measure", "-m", metavar="SQL", help="'sum(amount) as revenue'; may be repeated.")
    ],
    by: Annotated[list[str] | None, typer.Option("--by", metavar="FIELD", help="Group by; may be repeated.")] = None,
    window: Annotated[str, typer.Option("--window", metavar="DURATION", help="Length of a window.")] = "1m",
    late: Annotated[str, typer.Option("--late", metavar="DURATION", help="How late an event may come.")] = "1m",
    to_topic: ToTopic = "",
    to_table: ToTable = "",
    dlq: DeadLetters = "",
    name: Name = "",
    folder: Home = None,
    once: Once = False,
    no_run: NoRun = False,
    master: Master = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Sum up a topic in windows of event time; a window is written once it is over and late events have had their time.

    \b
    headrace pipeline rollup orders --schema 'shop string, amount double, at timestamp' --time at \\
        --by shop -m 'count(*) as orders' -m 'sum(amount) as revenue' --window 5m --to-topic revenue
    """
    from headrace.spark.pipeline import ready

    document = ready.rollup(
        topic,
        schema=schema,
        time=time,
        window=window,
        delay=late,
        by=by or [],
        measures=measure,
        broker=bootstrap,
        name=name or f"rollup-{topic}",
        to_topic=to_topic,
        to_table=_absolute(to_table),
        dlq=dlq,
    )
    _go(document, f"Roll-up of {topic}", folder, once, no_run, master)


def enrich(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    schema: Schema,
    on: Annotated[
        str,
        typer.Option("--on", metavar="FIELD[=FIELD]", help="Field of the stream, and the lookup's (default: its key)."),
    ],
    with_topic: Annotated[
        str, typer.Option("--with-topic", metavar="TOPIC", help="Look up in the newest record per key of this topic.")
    ] = "",
    with_schema: Annotated[str, typer.Option("--with-schema", metavar="DDL", help="The fields of its values.")] = "",
    with_table: Annotated[str, typer.Option("--with-table", metavar="PATH", help="Look up in this Delta table.")] = "",
    to_topic: ToTopic = "",
    to_table: ToTable = "",
    key: Annotated[str, typer.Option("--key", metavar="FIELD", help="Key of the results; default: --on's field.")] = "",
    dlq: DeadLetters = "",
    name: Name = "",
    folder: Home = None,
    once: Once = False,
    no_run: NoRun = False,
    master: Master = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Join a stream with a table, or with a compacted topic.

    \b
    headrace pipeline enrich orders --schema 'id long, customer string' --on customer \\
        --with-topic customers --with-schema 'name string, city string' --to-topic orders-enriched
    """
    from headrace.spark.pipeline import ready

    document = ready.enrich(
        topic,
        schema=schema,
        lookup_topic=with_topic,
        lookup_schema=with_schema,
        lookup_table=_absolute(with_table),
        on=on,
        broker=bootstrap,
        name=name or f"enrich-{topic}",
        to_topic=to_topic,
        to_table=_absolute(to_table),
        key=key,
        dlq=dlq,
    )
    _go(document, f"{topic}, enriched", folder, once, no_run, master)


def dedup(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to_topic: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="Where each message goes once.")],
    by: Annotated[
        str,
        typer.Option("--by", metavar="ID", help="What makes a message the same: key, header:NAME, or a JSON field."),
    ] = "key",
    within: Annotated[str, typer.Option("--within", metavar="DURATION", help="How far apart doubles may be.")] = "1h",
    name: Name = "",
    folder: Home = None,
    once: Once = False,
    no_run: NoRun = False,
    master: Master = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Copy a topic without doubles.

    \b
    headrace pipeline dedup orders --by id --within 10m --to-topic orders-once
    """
    from headrace.spark.pipeline import ready

    document = ready.dedup(topic, to_topic, id_path=by, delay=within, broker=bootstrap, name=name or f"dedup-{topic}")
    _go(document, f"{topic} without doubles", folder, once, no_run, master)


def replay(
    to_topic: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="Where the records go.")],
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="From this topic ...", show_default=False)] = "",
    table: Annotated[str, typer.Option("--table", metavar="PATH", help="... or from this archive.")] = "",
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="2026-01-31T12:00, 10m (ago), or ms.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="Up to, but without.")] = "",
    where: Annotated[str, typer.Option("--where", metavar="SQL", help='Only these: "partition = 0".')] = "",
    rate: Annotated[int | None, typer.Option("--rate", metavar="N", min=1, help="Records per second at most.")] = None,
    keep_partition: Annotated[
        bool, typer.Option("--keep-partition", help="Into the partitions they came from.")
    ] = False,
    folder: Home = None,
    master: Master = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Send records again: a time range of a topic, or an archive, into a topic. Interrupted, it goes on where it was.

    \b
    headrace pipeline replay orders --from 2026-01-31T12:00 --until 2026-01-31T13:00 --to-topic orders-again
    headrace pipeline replay --table /data/archive --to-topic orders-again --rate 10000
    """
    if bool(topic) == bool(table):
        raise UsageError("give a TOPIC or --table")
    from headrace.spark.pipeline.replay import Replay
    from headrace.spark.session import quiet_errors, spark_session

    home = folder or Path(f"replay-{to_topic}")
    replaying = Replay(
        bootstrap,
        to_topic,
        home,
        topic,
        _absolute(table),
        _time_ms(since, "--from"),
        _time_ms(until, "--until"),
        where,
        keep_partition,
        rate,
    )
    quiet_errors()
    spark = spark_session(f"replay to {to_topic}", master or "local[*]", say=output.note)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("replay", total=None)
        done = replaying.run(spark, lambda count, total: bar.update(task, completed=count, total=total))
    print(f"went through {done:,} records of {topic or table}; those that were wanted are in {to_topic}")


def _go(document: dict[str, Any], title: str, folder: Path | None, once: bool, no_run: bool, master: str) -> None:
    from headrace.cli.pipeline import run_folder
    from headrace.spark.pipeline import ready
    from headrace.spark.pipeline.config import load

    home = folder or Path(document["name"])
    if ready.save(home, document, title):
        output.note(f"made {home / 'pipeline.yml'}")
    if not no_run:
        run_folder(home, load(home), once=once, master=master)


def _absolute(path: str) -> str:
    return path if not path or "://" in path else str(Path(path).resolve())


def _time_ms(text: str, option: str) -> int | None:
    return moment_ms(text, option) if text else None
