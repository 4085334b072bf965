"""What `headrace log` finds in the files of one log: segments, batches, records, and everything that is wrong.

Rules:
- Reads through `ReadOnlyFiles`; changes nothing.
- A *problem* is something that the broker would repair or refuse: damaged batches and indexes, missing offsets, bytes
  that are no batch. A torn end of the last segment is one too, unless a broker is writing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ApiError
from headrace.storage.index import Extent, Index, decode
from headrace.storage.segment import Segment, walk
from headrace.storage.swapping import load_mark
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.cli.datadir import LogPlace, OfflineDirectory
    from headrace.wire.batch import BatchHeader

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PROBLEMS_SHOWN = 20  # of one log: a ruined file has one at every batch


@dataclass(slots=True)
class Verdict:
    """What verification found in one log."""

    place: LogPlace
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0
    problems: list[str] = field(default_factory=list)


def segments_of(directory: OfflineDirectory, place: LogPlace) -> list[Segment]:
    """A log's segments, with offsets and times as their batches tell. CRCs are not checked."""
    interval_bytes = directory.config(place).index_interval_bytes
    found = []
    for name in directory.files.names(place.path):
        stem, _, extension = name.partition(".")
        if extension == "log" and stem.isdigit():
            file = directory.files.open(f"{place.path}/{name}")
            segment = Segment(directory.files, place.path, int(stem), file, interval_bytes=interval_bytes)
            for _, header, _ in walk(file, 0, file.size):
                segment.note_header(header)
            found.append(segment)
    for segment in found[:-1]:
        segment.sealed = True
    return found


def first_dirty_offset(directory: OfflineDirectory, place: LogPlace) -> int | None:
    """Everything below was compacted; None if the log never was."""
    mark = load_mark(directory.files, place.path)
    return None if mark is None else mark.first_dirty_offset


def batches_of(
    directory: OfflineDirectory, place: LogPlace, offset: int | None
) -> Iterator[tuple[Segment, int, BatchHeader, bytes]]:
    """(segment, position in its file, header, buffer) of the batches from the one that holds `offset` on."""
    for segment in segments_of(directory, place):
        if offset is not None and segment.end_offset <= offset:
            continue
        for position, header, data in walk(segment.file, 0, segment.file.size):
            if offset is None or header.base_offset + header.last_offset_delta >= offset:
                yield segment, position, header, data


def verify(directory: OfflineDirectory, place: LogPlace, *, deep: bool, in_use: bool) -> Verdict:
    """Check every batch and every index of a log. With `deep`, open every record too."""
    verdict = Verdict(place)
    gaps_are_fine = directory.config(place).compacts or load_mark(directory.files, place.path) is not None
    segments = segments_of(directory, place)
    expected: int | None = None
    for number, segment in enumerate(segments):
        name = segment.path.rpartition("/")[2]
        if expected is not None and segment.base_offset != expected and not gaps_are_fine:
            verdict.problems.append(f"{name}.log should begin at offset {expected}")
        expected = _verify_batches(verdict, segment, name, deep=deep, gaps_are_fine=gaps_are_fine)
        left = segment.file.size - segment.size
        is_last = number == len(segments) - 1
        if left and not (in_use and is_last):
            kind = "a torn write perhaps: recovery decides" if is_last else "not at the end of the log"
            verdict.problems.append(f"{name}.log: {left} bytes at position {segment.size} are no batch ({kind})")
        _verify_index(verdict, segment, name)
        verdict.segments += 1
        verdict.bytes += segment.file.size
    if segments:
        verdict.start_offset, verdict.end_offset = segments[0].base_offset, segments[-1].end_offset
    _verify_checkpoint(verdict, directory, place)
    return verdict


def _verify_batches(verdict: Verdict, segment: Segment, name: str, *, deep: bool, gaps_are_fine: bool) -> int:
    """Returns the offset that should come next."""
    expected = segment.base_offset
    for position, header, data in walk(segment.file, 0, segment.size):
        where = f"{name}.log: the batch at position {position}, offset {header.base_offset}"
        if not batch.crc_matches(data, header):
            verdict.problems.append(f"{where} has a bad checksum")
        elif deep and (fault := _records_fault(data, header)):
            verdict.problems.append(f"{where} cannot be opened: {fault}")
        if header.base_offset < expected:
            verdict.problems.append(f"{where} goes back: {expected} should follow")
        elif header.base_offset > expected and not gaps_are_fine:
            verdict.problems.append(f"{where} leaves a gap: {expected} should follow")
        expected = header.base_offset + header.last_offset_delta + 1
        verdict.batches += 1
        verdict.records += max(0, header.count)
    return expected


def _records_fault(data: bytes, header: BatchHeader) -> str:
    try:
        count = sum(1 for _ in batch.records(data, header))
    except ApiError as error:
        return str(error)
    return "" if count == header.count else f"it has {count} records, its header says {header.count}"


def _verify_index(verdict: Verdict, segment: Segment, name: str) -> None:
    """Index files are caches: missing ones are fine, wrong ones are not."""
    files = segment.files
    offsets, times = files.load(f"{segment.path}.index"), files.load(f"{segment.path}.timeindex")
    if offsets is None and times is None:
        return
    loaded = decode(offsets, times, segment.base_offset)
    if loaded is None:
        verdict.problems.append(f"{name}.index or .timeindex is damaged (the broker builds them again)")
        return
    if fault := _index_fault(segment, *loaded):
        verdict.problems.append(f"{name}.index: {fault}")


def _index_fault(segment: Segment, index: Index, extent: Extent) -> str:
    if extent.size_bytes > segment.size:
        return f"it covers {extent.size_bytes} bytes, the log has {segment.size}"
    begins = {
        position: header.base_offset
        for position, header, _ in walk(segment.file, 0, min(extent.size_bytes, segment.size))
    }
    for offset, position in zip(index.offsets, index.positions, strict=True):
        if begins.get(position) != offset:
            return f"it has offset {offset} at position {position}, where no such batch begins"
    if any(earlier > later for earlier, later in zip(index.times, index.times[1:], strict=False)):
        return "its times do not rise"
    return ""


def _verify_checkpoint(verdict: Verdict, directory: OfflineDirectory, place: LogPlace) -> None:
    from headrace.storage.sync import RECOVERY_POINT, decode_offset

    content = directory.files.load(f"{place.path}/{RECOVERY_POINT}")
    if content is None:
        return
    point = decode_offset(content)
    if point is None:
        verdict.problems.append(f"{RECOVERY_POINT} is damaged (the whole log is read at the next start)")
    elif point > verdict.end_offset:
        verdict.problems.append(f"the log ends at offset {verdict.end_offset}, but {point} was durable: data is lost")


def batch_document(segment: Segment, position: int, header: BatchHeader, data: bytes) -> dict[str, Any]:
    codec = batch.codec_of(header)
    return {
        "segment": segment.base_offset,
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.base_offset + header.last_offset_delta,
        "records": header.count,
        "codec": CODECS[codec] if codec < len(CODECS) else str(codec),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": batch.is_transactional(header),
        "control": batch.is_control(header),
        "crc_ok": batch.crc_matches(data, header),
    }
