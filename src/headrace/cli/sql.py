"""`headrace sql`: ask topics, live and archived, in SQL; once, again and again, or in a shell."""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.options import BOOTSTRAP, Bootstrap, pairs

if TYPE_CHECKING:
    from headrace.spark.query import Topics

app = typer.Typer(add_completion=False, rich_markup_mode=None)
SHOWN = 1000
PROMPT, MORE = "headrace> ", "      ... "
HELP = """\
A statement ends with ; and may span lines. Topics are tables: select * from orders limit 5;
\\d          list topics          \\d NAME     columns of a topic
\\f FORMAT   table, csv or json   \\q          quit (or Ctrl-D)"""


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


@app.command()
def sql(
    statement: Annotated[
        str, typer.Argument(metavar="[STATEMENT]", help="Without it: a shell.", show_default=False)
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records; Ctrl-C ends.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look.")] = 2.0,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
    archive: Annotated[
        list[str] | None, typer.Option("--archive", metavar="TOPIC=PATH", help="Where a topic is archived; repeatable.")
    ] = None,
    lake: Annotated[
        str,
        typer.Option(
            "--lake", envvar="HEADRACE_LAKE", metavar="PATH", help="An archive, or a directory of them by topic."
        ),
    ] = "",
    schema: Annotated[
        list[str] | None, typer.Option("--schema", metavar="TOPIC=DDL", help="Fields of a topic's JSON; else guessed.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keys and values as bytes; nothing is decoded.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Rows to print at most.")] = SHOWN,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master.")] = "local[*]",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Ask topics in SQL. Fields of JSON values are columns; archived and live records are one table.

    \b
    headrace sql "select shop, count(*) from orders group by shop"
    headrace sql "select id, amount from orders where amount > 100" --follow --format json
    headrace sql --lake /data/archive
    """
    from headrace.client.connection import Connection
    from headrace.spark.query import Topics
    from headrace.spark.session import quiet_errors, spark_session

    Connection(bootstrap).reach()
    quiet_errors()
    spark = spark_session("headrace sql", master, say=output.note)
    topics = Topics(spark, bootstrap, pairs(archive or [], "--archive"), lake, pairs(schema or [], "--schema"), raw)
    if not statement:
        Shell(topics, form, limit).run()
    elif follow:
        _follow(topics, statement, form, limit, every)
    else:
        _print(topics.sql(statement), form, limit)


def _rows(frame: Any, limit: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    from headrace.spark.query import sentences

    with sentences():  # much is found only when rows are computed: an overflow, a cast, records that are gone
        found = [tuple(row) for row in frame.limit(limit + 1).collect()]
    return list(frame.columns), found[:limit], len(found) > limit


def _print(frame: Any, form: Format, limit: int, *, header: bool = True) -> int:
    columns, rows, more = _rows(frame, limit)
    if form is Format.json:
        for row in rows:
            output.emit_line({name: _plain(value) for name, value in zip(columns, row, strict=True)})
    elif form is Format.csv:
        writer = csv.writer(sys.stdout)
        if header:
            writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in rows)
    elif header or rows:
        output.table(columns, [[_cell(value) for value in row] for row in rows])
    sys.stdout.flush()
    if more:
        output.note(f"(the first {limit:,} rows; --limit shows more)")
    return len(rows)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, dict | list):
        import json

        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return plain


def _follow(topics: Topics, statement: str, form: Format, limit: int, every: float) -> None:
    _print(topics.sql(statement), form, limit)
    stream = topics.follow(statement)
    if stream is None:
        while True:  # an aggregate, a join, an order: the whole answer, anew
            time.sleep(every)
            if form is Format.table:
                print(f"-- {datetime.now():%H:%M:%S}")
            _print(topics.sql(statement), form, limit)

    def show(frame: Any, batch_id: int) -> None:
        _print(frame, form, limit, header=False)

    with tempfile.TemporaryDirectory(prefix="headrace-sql-") as checkpoint:
        query = (
            stream.writeStream.foreachBatch(show)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{int(every * 1000)} milliseconds")
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


class Shell:
    """Statements from a terminal (or a pipe), with history."""

    def __init__(self, topics: Topics, form: Format, limit: int) -> None:
        self._topics = topics
        self._form = form
        self._limit = limit

    def run(self) -> None:
        if sys.stdin.isatty():
            _use_history()
            print(HELP)
        for statement in self._statements():
            began = time.monotonic()
            try:
                if statement.startswith("\\"):
                    if not self._command(statement):
                        return
                    continue
                count = _print(self._topics.sql(statement), self._form, self._limit)
                output.note(f"({count:,} row{'s' * (count != 1)}, {time.monotonic() - began:.1f} s)")
            except KeyboardInterrupt:
                output.note("stopped")
            except Exception as error:  # the shell goes on
                from headrace.cli.report import complain

                output.note(f"error: {complain(error).line}")

    def _statements(self) -> Iterator[str]:
        waiting = ""
        while True:
            try:
                line = input(MORE if waiting else PROMPT) if sys.stdin.isatty() else sys.stdin.readline()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                waiting = ""
                continue
            if not sys.stdin.isatty() and not line:
                if waiting.strip():
                    yield waiting.strip()
                return
            if not waiting and line.strip().startswith("\\"):
                yield line.strip()
                continue
            waiting = f"{waiting}\n{line}" if waiting else line
            if waiting.rstrip().endswith(";"):
                yield waiting.strip().rstrip(";")
                waiting = ""
            elif not waiting.strip():
                waiting = ""

    def _command(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        name = rest.strip()
        if word == "\\q":
            return False
        if word == "\\d" and name:
            frame = self._topics.sql(f"select * from `{name}`")
            output.table(["COLUMN", "TYPE"], frame.dtypes)
        elif word == "\\d":
            output.table(["TOPIC"], [(each,) for each in self._topics.names()])
        elif word == "\\f" and name in set(Format):
            self._form = Format(name)
        else:
            print(HELP)
        return True


def _use_history() -> None:
    try:
        import atexit
        import readline
    except ImportError:
        return
    path = Path.home() / ".headrace_sql_history"
    try:
        readline.read_history_file(path)
    except OSError:
        pass
    readline.set_history_length(2000)

    def keep() -> None:
        try:
            readline.write_history_file(path)
        except OSError:
            pass

    atexit.register(keep)
