"""`headrace log`: look into a data directory without a broker. Only `accept` changes anything."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import moments, output, payload
from headrace.cli.options import Json
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.cli.datadir import LogPlace, OfflineDirectory
    from headrace.cli.inspection import Verdict
    from headrace.storage.segment import Segment

app = typer.Typer(
    help="Look into a data directory without a broker. Only `accept` changes anything.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

SHOWN = 120  # letters of a value; --json has them all

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The broker's --data-dir.")]
Topic = Annotated[str | None, typer.Argument(metavar="[TOPIC]")]
Partition = Annotated[int | None, typer.Argument(metavar="[PARTITION]")]


@app.command("list")
def list_logs(directory: Directory, topic: Topic = None, json: Json = False) -> None:
    """List the logs and their segments: offsets, sizes, times."""
    from headrace.cli import inspection

    data = _open(directory)
    found = [
        (place, inspection.segments_of(data, place), inspection.first_dirty_offset(data, place))
        for place in data.logs(topic)
    ]
    if json:
        output.emit([_log_document(*each) for each in found])
        return
    if not found:
        output.note(f"{directory} holds no logs yet")
        return
    output.table(
        ["TOPIC", ">PART", ">SEGMENT", ">END", ">SIZE", "STATE", "FIRST", "LAST"],
        [
            (
                place.topic,
                place.partition,
                segment.base_offset,
                segment.end_offset,
                output.size(segment.file.size),
                _state(segment, first_dirty_offset),
                output.moment(segment.min_timestamp)[:16],
                output.moment(segment.max_timestamp)[:16],
            )
            for place, segments, first_dirty_offset in found
            for segment in segments
        ],
    )


@app.command()
def dump(
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    records: Annotated[bool, typer.Option("--records", "-r", help="Open the batches and print records.")] = False,
    offset: Annotated[int | None, typer.Option("--offset", "-o", min=0, help="From the batch that holds it.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many batches.")] = None,
    json: Json = False,
) -> None:
    """Print the batches of a log, one line each; with --json one JSON object per line."""
    from headrace.cli import inspection

    data = _open(directory)
    (place,) = data.logs(topic, partition)
    for segment, position, header, content in islice(inspection.batches_of(data, place, offset), limit):
        document = inspection.batch_document(segment, position, header, content)
        opened = _records(place, header, content) if records else []
        if json:
            output.emit_line({**document, "content": opened} if records else document)
            continue
        print(_batch_line(document))
        for record in opened:
            print(f"    {_record_line(record)}")


@app.command()
def verify(
    directory: Directory,
    topic: Topic = None,
    partition: Partition = None,
    deep: Annotated[bool, typer.Option("--deep", help="Open every record too.")] = False,
    json: Json = False,
) -> None:
    """Check all checksums, offsets and indexes. Exit 1 if something is wrong."""
    from headrace.cli import inspection

    data = _open(directory)
    in_use = data.is_in_use()
    verdicts = [inspection.verify(data, place, deep=deep, in_use=in_use) for place in data.logs(topic, partition)]
    wrong = sum(len(verdict.problems) for verdict in verdicts)
    if json:
        output.emit({"ok": not wrong, "in_use": in_use, "logs": [_verdict_document(verdict) for verdict in verdicts]})
    else:
        _show_verdicts(verdicts)
    if wrong:
        raise typer.Exit(1)


@app.command()
def recover(
    directory: Directory,
    topic: Topic = None,
    partition: Partition = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Required: the broker itself recovers.")] = False,
    json: Json = False,
) -> None:
    """Show what a broker would cut, keep or refuse at its next start. Exit 1 if it would refuse."""
    if not dry_run:
        raise UsageError("a broker recovers by itself when it starts; add --dry-run to see what it would do")
    data = _open(directory)
    found = [(place, _recovery(data, place)) for place in data.logs(topic, partition)]
    if json:
        output.emit([{"topic": place.topic, "partition": place.partition, **what} for place, what in found])
    else:
        for place, what in found:
            print(f"{place.topic}-{place.partition}: {_recovery_line(what)}")
    if any(what["refused"] for _, what in found):
        raise typer.Exit(1)


@app.command()
def accept(
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
) -> None:
    """Accept that a log is lost, or older than it was: the next start takes what is there, if anything is."""
    from headrace.core.errors import ConfigError
    from headrace.runtime.disk import DiskFiles
    from headrace.storage import manifest as manifests

    _open(directory)
    files = DiskFiles(directory)
    held = files.lock()
    if held is None:
        raise ConfigError("a broker is at work in this directory: stop it first")
    try:
        manifest = manifests.Manifest.read(files)
        if manifest is None or manifest[topic, partition] is None:
            raise UsageError(f"{directory} knows of no log {topic}-{partition}: there is nothing to accept")
        manifests.accept(manifest, [(topic, partition)])
        manifest.save(anew=True)
        manifest.close()
    finally:
        held.release()
    print(f"{topic}-{partition}: the next start of the broker takes what is there")


def _open(directory: str) -> OfflineDirectory:
    from headrace.cli.datadir import OfflineDirectory

    data = OfflineDirectory(directory)
    if data.is_in_use():
        output.note("note: a broker is at work in this directory; the ends of logs may move while they are read")
    return data


def _state(segment: Segment, first_dirty_offset: int | None) -> str:
    if not segment.sealed:
        return "open"
    return "compacted" if first_dirty_offset is not None and segment.end_offset <= first_dirty_offset else "sealed"


def _log_document(place: LogPlace, segments: list[Segment], first_dirty_offset: int | None) -> dict[str, Any]:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "path": place.path,
        "first_dirty_offset": first_dirty_offset,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "bytes": segment.file.size,
                "sealed": segment.sealed,
                "min_timestamp": segment.min_timestamp,
                "max_timestamp": segment.max_timestamp,
            }
            for segment in segments
        ],
    }


def _records(place: LogPlace, header: Any, content: bytes) -> list[dict[str, Any]]:
    from headrace.client.message import Message
    from headrace.core.errors import ApiError
    from headrace.wire import batch

    try:
        return [
            payload.to_json(
                Message(place.topic, place.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
            )
            for each in batch.records(content, header)
        ]
    except ApiError as error:
        return [{"error": str(error)}]


def _batch_line(document: dict[str, Any]) -> str:
    span = f"{document['base_offset']}..{document['last_offset']}"
    flags = [name for name in ("transactional", "control") if document[name]]
    if document["producer_id"] >= 0:
        who = f"{document['producer_id']}:{document['producer_epoch']}"
        flags.append(f"producer {who} seq {document['base_sequence']}")
    if not document["crc_ok"]:
        flags.append("BAD CHECKSUM")
    return (
        f"{span:<14} {document['records']} records  {output.size(document['size'])}  {document['codec']}"
        f"  @{document['position']}  {output.moment(document['max_timestamp'])}  epoch {document['leader_epoch']}"
        + "".join(f"  {flag}" for flag in flags)
    )


def _record_line(record: dict[str, Any]) -> str:
    if "error" in record:
        return f"cannot be opened: {record['error']}"
    headers = f"  {record['headers']}" if record["headers"] else ""
    value = output.clipped(repr(record["value"]), SHOWN)
    return f"{record['offset']}  {output.moment(record['timestamp'])}  {record['key']!r}: {value}{headers}"


def _verdict_document(verdict: Verdict) -> dict[str, Any]:
    return {
        "topic": verdict.place.topic,
        "partition": verdict.place.partition,
        "segments": verdict.segments,
        "batches": verdict.batches,
        "records": verdict.records,
        "bytes": verdict.bytes,
        "start_offset": verdict.start_offset,
        "end_offset": verdict.end_offset,
        "problems": verdict.problems,
    }


def _show_verdicts(verdicts: list[Verdict]) -> None:
    from headrace.cli.inspection import PROBLEMS_SHOWN

    for verdict in verdicts:
        if verdict.problems:
            count = len(verdict.problems)
            print(f"{verdict.place.topic}-{verdict.place.partition}: {count} problem{'s' * (count != 1)}")
            for problem in verdict.problems[:PROBLEMS_SHOWN]:
                print(f"  {problem}")
            if len(verdict.problems) > PROBLEMS_SHOWN:
                print(f"  ... and {len(verdict.problems) - PROBLEMS_SHOWN} more")
    batches, records = sum(each.batches for each in verdicts), sum(each.records for each in verdicts)
    wrong = sum(1 for verdict in verdicts if verdict.problems)
    checked = f"{batches:,} batches, {records:,} records read"
    print(f"{wrong} of {len(verdicts)} logs damaged" if wrong else f"{len(verdicts)} logs sound", f"({checked})")


def _recovery(data: OfflineDirectory, place: LogPlace) -> dict[str, Any]:
    from headrace.core.errors import StorageError
    from headrace.storage.recovery import examine
    from headrace.storage.swapping import pending

    if pending(data.files, place.path):
        output.note(f"{place.topic}-{place.partition}: a compaction was cut short; the next start settles that first")
    try:
        found = examine(data.files, place.path, data.config(place), now_ms=moments.now_ms())
    except StorageError as error:
        return {"refused": str(error), "cuts": [], "start_offset": None, "end_offset": None, "recovery_point": None}
    return {
        "refused": None,
        "cuts": [
            {"segment": cut.base_offset, "position": cut.position, "bytes": cut.lost_bytes, "reason": cut.reason}
            for cut in found.cuts
        ],
        "start_offset": found.start_offset,
        "end_offset": found.end_offset,
        "recovery_point": found.recovery_point,
    }


def _recovery_line(what: dict[str, Any]) -> str:
    if what["refused"]:
        return f"REFUSED: {what['refused']}"
    start, end = what["start_offset"], what["end_offset"]
    kept = f"keeps offsets {start} to {end}" if end > start else "is empty"
    cuts = "; ".join(
        f"cuts {output.size(cut['bytes'])} of segment {cut['segment']} at position {cut['position']} ({cut['reason']})"
        for cut in what["cuts"]
    )
    return f"{kept}; {cuts or 'nothing to cut'}"
