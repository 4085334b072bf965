"""`compression.type`: batches are stored in the topic's codec, whatever their producer used.

Rules:
- A batch that has the codec already stays as it is, whatever its level.
- `record_validation` calls this, for large batches in a worker. What opens to more than `OPENED_BYTES` stays as its
  producer sent it, and so does what cannot be opened (with `headrace.record.validation=header`).
- Offsets, sequences and timestamps stay; the size is checked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, ErrorCode
from headrace.wire import batch
from headrace.wire.layout import GZIP, LZ4, NONE, SNAPPY, ZSTD

if TYPE_CHECKING:
    from headrace.storage.topic_config import TopicConfig
    from headrace.wire.batch import BatchHeader

OPENED_BYTES: Final = 8 * 1024 * 1024
CODECS: Final = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


def in_codec(records: bytes, headers: list[BatchHeader], config: TopicConfig) -> tuple[bytes, list[BatchHeader]]:
    """Checked batches in the codec of their topic, which is not `producer`. Raises ApiError(message_too_large)."""
    codec = CODECS[config.compression_type]
    if all(batch.codec_of(header) == codec for header in headers):
        return records, headers
    level = _level(codec, config)
    made = b"".join(_recompressed(records, header, codec, level) for header in headers)
    found = list(batch.headers(made))
    for header in found:
        if header.size > config.max_message_bytes:
            raise ApiError(
                ErrorCode.message_too_large,
                f"a batch of {header.size} bytes as {config.compression_type}; {config.max_message_bytes} are allowed",
            )
    return made, found


def _recompressed(records: bytes, header: BatchHeader, codec: int, level: int | None) -> bytes:
    if batch.codec_of(header) != codec:
        try:
            return batch.recompress(records, header, codec, level=level, max_bytes=OPENED_BYTES)
        except ApiError:
            pass  # see the rules
    return records[header.position : header.position + header.size]


def _level(codec: int, config: TopicConfig) -> int | None:
    if codec == GZIP:
        return config.compression_gzip_level
    if codec == LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == ZSTD else None
