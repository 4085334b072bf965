"""Every named maximum. A buffer, a count or a wait that a peer can make grow has its limit here or in a setting."""

from __future__ import annotations

import re
from typing import Final

FRAME_BYTES_BEFORE_AUTH: Final = 512 * 1024
FRAME_BYTES: Final = 100 * 1024 * 1024
HEADER_BYTES: Final = 34 * 1024  # of a request, before its body: the longest client id, and tags
IN_FLIGHT_PER_CONNECTION: Final = 128
WAITING_FRAMES: Final = 32  # of a connection that waits for its turn; no more are read above it
HELD_BYTES: Final = 1024 * 1024  # of a connection's answers that wait for earlier ones; no more are made above it
SMALL_BYTES: Final = 16 * 1024  # of requests, and of answers, that each connection may hold besides the memory for all
FETCH_WAIT_MS: Final = 300_000
FETCH_BYTES: Final = 16 * 1024 * 1024  # a peer may have many fetches open; clients take less than they asked for
TOPIC_NAME_LENGTH: Final = 249
PARTITIONS_PER_TOPIC: Final = 10_000
PARTITIONS_PER_REQUEST: Final = 10_000
OFFSET_METADATA_BYTES: Final = 4096
GROUP_ID_LENGTH: Final = 1024
TRANSACTIONAL_ID_LENGTH: Final = 1024
PRODUCERS_PER_LOG: Final = 20_000  # of more, those that were silent for longest are forgotten
GROUP_METADATA_BYTES: Final = 1024 * 1024
MEMBERS_PER_GROUP: Final = 10_000
DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def topic_name_fault(name: str) -> str | None:
    """Why a topic name is not allowed, or None if it is. Paths are only ever built from names that pass."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return "a topic name must not be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH:
        return f"a topic name has at most {TOPIC_NAME_LENGTH} characters"
    if not _TOPIC_NAME.match(name):
        return "a topic name may hold ASCII letters, digits, '.', '_' and '-' only"
    return None
