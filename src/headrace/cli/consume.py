"""`headrace consume`: print messages, old and new; alone or as a member of a group."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import moments, output, payload, spans, template
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Properties, Timeout, connect
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from headrace.client.connection import Connection
    from headrace.client.message import Message

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...")]
Beginning = Annotated[bool, typer.Option("--from-beginning", "-B", help="From the first message there is.")]
Offset = Annotated[
    str | None,
    typer.Option("--offset", "-o", metavar="N", help="From offset N, -N before the end, earliest or latest."),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="From a time, or 10m for that long ago.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Up to a time.")]
Tail = Annotated[int | None, typer.Option("--tail", "-n", min=0, help="From the last N messages.")]
Max = Annotated[int | None, typer.Option("--max", "-m", min=1, help="End after so many messages.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
]
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new messages, or end at the end.")]
Exit = Annotated[bool, typer.Option("--exit", "-e", help="The same as --no-follow.")]
Group = Annotated[str | None, typer.Option("--group", "-g", help="Join this group and commit what was printed.")]
Format = Annotated[
    str | None, typer.Option("--format", metavar="TEXT", help="%k key, %v value, %t topic, %p, %o, %T ms, %D date, %h.")
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Raw = Annotated[bool, typer.Option("--raw", help="Values only, nothing between them.")]
Keys = Annotated[bool, typer.Option("--keys", help="Print keys before values.")]
Headers = Annotated[bool, typer.Option("--headers", help="Print headers.")]
Timestamps = Annotated[bool, typer.Option("--timestamps", help="Print times.")]
Offsets = Annotated[bool, typer.Option("--offsets", help="Print topic, partition and offset.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr.")]


@app.command()
def consume(
    topics: Topics,
    from_beginning: Beginning = False,
    offset: Offset = None,
    since: Since = None,
    until: Until = None,
    tail: Tail = None,
    max_messages: Max = None,
    partition: Partitions = None,
    follow: Follow = True,
    end: Exit = False,
    group: Group = None,
    format: Format = None,
    json: JsonLines = False,
    raw: Raw = False,
    keys: Keys = False,
    headers: Headers = False,
    timestamps: Timestamps = False,
    offsets: Offsets = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Print messages of topics. New ones, and on until Ctrl-C, unless told otherwise.

    \b
    headrace consume orders --from-beginning --exit      all there is
    headrace consume orders --tail 10                    the last ten, then what comes
    headrace consume orders --since 10m --json | jq .value
    headrace consume orders --group billing --keys       commits what it has printed
    """
    if sum([json, raw, format is not None]) > 1:
        raise UsageError("--json, --raw and --format contradict each other: give one")
    wish = spans.Wish(from_beginning, offset, since, tail, until, tuple(partition or ()), follow and not end)
    wish.check()
    if format is None:
        columns = template.default_template(keys=keys, headers=headers, timestamps=timestamps, offsets=offsets)
        format = "%v" if raw else columns
    write = _json_line if json else template.compile_template(format)
    connection = connect(bootstrap, properties, timeout)
    printer = Printer(write, max_messages)
    if group is not None:
        messages = _group(connection, topics, group, wish)
    else:
        messages = _alone(connection, topics, wish, quiet=quiet)
    _print(messages, printer, quiet=quiet)


Batches = Generator[list["Message"], None, None]


@dataclass(slots=True)
class Printer:
    """Writes messages to stdout and counts them."""

    write: Callable[[Message], bytes]
    limit: int | None = None
    messages: int = 0
    bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def is_done(self) -> bool:
        return self.limit is not None and self.messages >= self.limit

    def print(self, batch: Iterable[Message]) -> None:
        """Print a batch. Nothing of it is in a buffer of ours afterwards."""
        lines = []
        for message in batch:
            if self.is_done:
                break
            lines.append(self.write(message))
            self.messages += 1
            self.bytes += len(message.key or b"") + len(message.value or b"")
        if lines:
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()

    def summary(self) -> str:
        seconds = time.monotonic() - self.started
        return f"{self.messages:,} message{'s' * (self.messages != 1)}, {output.size(self.bytes)} in {seconds:.1f} s"


def _print(batches: Batches, printer: Printer, *, quiet: bool) -> None:
    """Print until there is no more, enough, or Ctrl-C (which is how following ends: no failure)."""
    interrupted = False
    try:
        with _heard_interrupts() as heard:
            for batch in batches:
                printer.print(batch)
                if printer.is_done:
                    break
                if heard:
                    raise KeyboardInterrupt
    except (KeyboardInterrupt, BrokenPipeError) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            batches.throw(error)  # what was not printed must not be committed
        if not interrupted:  # the reader, `head` perhaps, has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        batches.close()
    if not quiet and (interrupted or sys.stderr.isatty()):
        output.note(printer.summary())
    if interrupted:
        raise typer.Exit(130)


@contextlib.contextmanager
def _heard_interrupts() -> Iterator[list[int]]:
    """Ctrl-C interrupts as ever, and is written down: raised at a bad moment, in a callback, it would be lost."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def _alone(connection: Connection, topics: list[str], wish: spans.Wish, *, quiet: bool) -> Batches:
    """Batches of messages of the wished ranges, without a group."""
    from headrace.client.admin import Admin
    from headrace.client.reader import Range, Reader

    ranges = spans.plan(Admin(connection), topics, wish)
    if wish.tail is not None:
        ends = {(each.topic, each.partition): each for each in spans.plan(Admin(connection), topics, _to_end(wish))}
        yield _last(connection, list(ends.values()), wish.tail)
        if not wish.follow:
            return
        ranges = [Range(each.topic, each.partition, ends[each.topic, each.partition].stop or 0) for each in ranges]
    elif wish.starts_at_end and wish.follow and not quiet and sys.stderr.isatty():
        output.note("waiting for new messages; --from-beginning shows old ones, Ctrl-C ends")
    deadline_ms = moments.moment_ms(wish.until, "--until") if wish.until is not None else None
    with Reader(ranges, bootstrap=connection, on_trouble=None if quiet else _tell_once()) as reader:
        while not reader.exhausted:
            batch = reader.batch()
            if deadline_ms is not None:
                batch = [message for message in batch if message.timestamp_ms < deadline_ms]
            yield batch
            if deadline_ms is not None and not batch and moments.now_ms() > deadline_ms:
                return


def _to_end(wish: spans.Wish) -> spans.Wish:
    return spans.Wish(tail=wish.tail, partitions=wish.partitions, until=wish.until, follow=False)


def _last(connection: Connection, ranges: list[Any], count: int) -> list[Message]:
    """The last `count` messages of all ranges together, by time."""
    from headrace.client.reader import Reader

    with Reader(ranges, bootstrap=connection) as reader:
        found = sorted(reader, key=lambda message: (message.timestamp_ms, message.partition, message.offset))
    return found[-count:] if count else []


def _group(connection: Connection, topics: list[str], group: str, wish: spans.Wish) -> Batches:
    """Messages as a member of a group; committed after they were printed."""
    from headrace.client.consumer import Consumer

    if wish.partitions or wish.since or wish.until or wish.tail is not None:
        raise UsageError("a group goes on where it stopped: use `headrace group reset` to move it")
    if wish.offset not in (None, "earliest", "latest"):
        raise UsageError("--offset with --group is earliest or latest")
    start = "latest" if wish.starts_at_end else "earliest"
    with Consumer(topics, group=group, bootstrap=connection, start=start, until_end=not wish.follow) as consumer:  # type: ignore[arg-type]
        for message in consumer:
            yield [message]


def _json_line(message: Message) -> bytes:
    return jsonlib.dumps(payload.to_json(message), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _tell_once() -> Callable[[str], None]:
    """Say that the connection is lost, once, however often librdkafka says so."""
    told = False

    def tell(trouble: str) -> None:
        nonlocal told
        if not told:
            told = True
            output.note(f"headrace: {trouble}; trying again")

    return tell
