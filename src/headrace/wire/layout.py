"""Where things lie in a record batch of format v2 (magic 2).

Rules:
- Facts of the format only: no checks, no bytes moved.
- The CRC covers everything from the attributes to the end, so base offset, length, leader epoch and magic may
  change without a new checksum.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER_BYTES: Final = 61
LENGTH_OVERHEAD: Final = 12  # bytes before and including batch_length
MAGIC: Final = 2

# base_offset, batch_length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
# producer_id, producer_epoch, base_sequence, count
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
# The first seven of them: all that tells whether a batch is whole, and where it belongs
PREFIX: Final = struct.Struct(">qiibIhi")
# base_offset, batch_length, leader_epoch: what the leader stamps
STAMP: Final = struct.Struct(">qii")
CRC: Final = struct.Struct(">I")
ATTRIBUTES: Final = struct.Struct(">h")
TIMESTAMP: Final = struct.Struct(">q")

MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35

CODEC_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, null key, null value, no headers

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
