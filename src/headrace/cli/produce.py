"""`headrace produce`: send messages from arguments, stdin or files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import moments, output, sources
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Json, Properties, Timeout, connect, pair_list
from headrace.cli.payload import Outgoing
from headrace.cli.report import UsageError
from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.producer import Producer, Receipt

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    all = "all"
    one = "1"
    none = "0"


Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Values = Annotated[
    list[str] | None, typer.Argument(metavar="[VALUE]...", help="Messages; without any, lines of stdin.")
]
File = Annotated[list[str] | None, typer.Option("--file", "-f", metavar="PATH", help="Lines of a file; - is stdin.")]
Whole = Annotated[bool, typer.Option("--whole", help="Each file is one message.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Splits a line into key and value.")
]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header; may be repeated.")
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="To this partition.")]
Timestamp = Annotated[str | None, typer.Option("--timestamp", metavar="TIME", help="ISO time, epoch ms, or 10m (ago).")]
JsonLines = Annotated[bool, typer.Option("--json-lines", help='Lines are {"key": .., "value": .., "headers": {..}}.')]
Null = Annotated[bool, typer.Option("--null", help="Send a null value (a tombstone).")]
Codec = Annotated[Compression, typer.Option("--compression", "-z", help="How batches are compressed.")]
Quorum = Annotated[Acks, typer.Option("--acks", help="Who must have a message before it counts.")]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many per second.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")]


@app.command()
def produce(
    topic: Topic,
    values: Values = None,
    file: File = None,
    whole: Whole = False,
    key: Key = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: Partition = None,
    timestamp: Timestamp = None,
    json_lines: JsonLines = False,
    null: Null = False,
    compression: Codec = Compression.none,
    acks: Quorum = Acks.all,
    rate: Rate = None,
    quiet: Quiet = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Send messages to a topic.

    \b
    headrace produce orders '{"id": 1}' '{"id": 2}' --key alice
    headrace produce orders --file orders.jsonl --rate 1000
    headrace consume orders --json --exit | headrace produce copy --json-lines
    """
    shape = sources.Shape(
        None if key is None else key.encode(),
        None if key_separator is None else _unescape(key_separator),
        [(name, text.encode()) for name, text in pair_list(header or [], "--header")],
        -1 if partition is None else partition,
        0 if timestamp is None else moments.moment_ms(timestamp, "--timestamp"),
        json_lines,
    )
    connection = connect(bootstrap, properties, timeout)
    chosen = _choose(values or [], file or [], null=null, whole=whole)
    from headrace.client.producer import Producer

    producer = Producer(
        connection, acks=acks.value, compression=compression.value, delivery_s=max(30.0, connection.timeout_s)
    )
    tally = Tally(topic)
    with _bar(file or [], quiet=quiet or json) as advance:
        stopped = _send(producer, topic, chosen(shape, advance), tally, rate)
    _finish(tally, stopped=stopped, json=json, quiet=quiet)


@dataclass(slots=True)
class Tally:
    """What became of the messages."""

    topic: str
    messages: int = 0
    bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: Exception | None = None
    partitions: dict[int, list[int]] = field(default_factory=dict)  # count, first offset, last offset
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def delivered(self, size: int, receipt: Receipt) -> None:
        self.messages += 1
        self.bytes += size
        spot = self.partitions.setdefault(receipt.partition, [0, receipt.offset, receipt.offset])
        spot[0] += 1
        if receipt.offset >= 0:
            spot[1] = receipt.offset if spot[1] < 0 else min(spot[1], receipt.offset)
            spot[2] = max(spot[2], receipt.offset)

    def failed(self, error: Exception) -> None:
        self.failures[getattr(error, "code", "") or type(error).__name__] += 1
        self.first_failure = self.first_failure or error

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "messages": self.messages,
            "failed": sum(self.failures.values()),
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "partitions": {
                str(index): {"messages": count, "first_offset": first, "last_offset": last}
                for index, (count, first, last) in sorted(self.partitions.items())
            },
            "errors": dict(self.failures),
        }

    def lines(self) -> Iterator[str]:
        pace = f", {self.messages / self.seconds:,.0f}/s" if self.messages > 100 and self.seconds else ""
        plural = "s" * (self.messages != 1)
        yield f"{self.messages:,} message{plural} ({output.size(self.bytes)}) to {self.topic}{pace}"
        for index, (count, first, last) in sorted(self.partitions.items()):
            where = "not acknowledged" if first < 0 else f"offset {first}" + (f" to {last}" if last > first else "")
            yield (
                f"  partition {index}: {count:,} at {where}"
                if first >= 0
                else f"  partition {index}: {count:,}, {where}"
            )


Choice = Callable[[sources.Shape, Callable[[int], None]], Iterator[Outgoing]]


def _choose(values: list[str], files: list[str], *, null: bool, whole: bool) -> Choice:
    """Where messages come from. Raises UsageError where the options contradict each other."""
    if null and (values or files):
        raise UsageError("--null stands alone: a message has a value or none")
    if values and files:
        raise UsageError("give values or --file, not both")
    if whole and not files:
        raise UsageError("--whole goes with --file")
    if null:
        return lambda shape, _: iter([shape.plain(None, shape.key)])
    if values:
        return lambda shape, _: sources.from_arguments(values, shape)
    if not files and sys.stdin.isatty():
        output.note("one message per line; Ctrl-D ends")
    return lambda shape, advance: sources.from_files(files or ["-"], shape, whole=whole, advance=advance)


def _send(producer: Producer, topic: str, messages: Iterator[Outgoing], tally: Tally, rate: float | None) -> bool:
    """Send and wait for all deliveries. True if Ctrl-C ended it early."""
    from headrace.client.errors import ClientError

    stopped = False
    try:
        for index, message in enumerate(messages):
            if rate is not None:
                _pace(producer, tally.started + index / rate)
            _post(producer, topic, message, tally)
    except KeyboardInterrupt:
        stopped = True
    try:
        while producer.flush(0.2):
            pass
    except KeyboardInterrupt:
        stopped = True
        tally.failed(ClientError(f"{len(producer)} messages were not acknowledged", "INTERRUPTED"))
    tally.seconds = time.monotonic() - tally.started
    return stopped


def _post(producer: Producer, topic: str, message: Outgoing, tally: Tally) -> None:
    size = message.size

    def settle(error: HeadraceError | None, receipt: Receipt | None) -> None:
        if receipt is not None:
            tally.delivered(size, receipt)
        elif error is not None:
            tally.failed(error)

    try:
        producer.post(
            topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=message.partition,
            timestamp_ms=message.timestamp_ms,
            on_delivery=settle,
        )
    except HeadraceError as error:
        tally.failed(error)


def _pace(producer: Producer, due: float) -> None:
    while (wait := due - time.monotonic()) > 0:
        producer.poll(min(wait, 0.2))


def _finish(tally: Tally, *, stopped: bool, json: bool, quiet: bool) -> None:
    if json:
        output.emit(tally.document())
    elif not quiet:
        print("\n".join(tally.lines()))
    failed = sum(tally.failures.values())
    if tally.first_failure is not None:
        from headrace.cli.report import complain

        output.note(f"headrace: {failed:,} not delivered: {complain(tally.first_failure).line}")
        raise typer.Exit(1)
    if stopped:
        raise typer.Exit(130)


@contextlib.contextmanager
def _bar(paths: list[str], *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, where the input is files; else nothing."""
    total = sources.total_bytes(paths) if paths else None
    if quiet or not total or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=total)
        waiting = 0

        def advance(count: int) -> None:
            nonlocal waiting
            waiting += count
            if waiting >= 65536:
                progress.advance(task, waiting)
                waiting = 0

        yield advance


def _unescape(text: str) -> bytes:
    return text.replace("\\t", "\t").replace("\\n", "\n").encode()
