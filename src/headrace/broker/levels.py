"""What the nodes of a cluster can read: so that two releases may run together while it is upgraded.

Rules:
- A release has a level: it reads and writes all records of the metadata log up to that. A new kind of record has its
  level in `LEVEL_OF`, and raises `LEVEL`. A field whose loss does no harm goes to the end of its record with a
  default, and needs no level; one that must not be lost is a new kind of record.
- Every node tells its level when it joins and registers, and with every beat: a leader of an older release does not
  write it down, the next one does. A node that tells none has level 1.
- Nothing is proposed that a node of the cluster cannot read: not before the last one is upgraded.
- Nodes may go back to an older release until something is in the log that it cannot read. Then it is refused, before
  it has got any of it.
- What is in the log is what the image has been made of; nothing else is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.image import Image, MetadataRecord

FIRST: Final = 1
ELIGIBLE_LEADERS: Final = 2  # `image.EligiblePartitionRecord` (KIP-966)
LEVEL: Final = ELIGIBLE_LEADERS  # of this release
LEVEL_OF: Final[dict[type, int]] = {}  # kinds of records that came after the first level; `image` fills it


def level_of(records: Iterable[MetadataRecord]) -> int:
    """The level that a node needs to read these."""
    return max((LEVEL_OF.get(type(record), FIRST) for record in records), default=FIRST)


def check_readable(image: Image, records: Iterable[MetadataRecord]) -> None:
    """Raises ApiError if a node of the cluster could not read these."""
    wanted = level_of(records)
    behind = [node.node_id for node in image.brokers.values() if node.level < wanted] if wanted > FIRST else []
    if behind:
        nodes = f"node {behind[0]} runs" if len(behind) == 1 else f"nodes {', '.join(map(str, behind))} run"
        raise ApiError(
            ErrorCode.unsupported_version, f"{nodes} an older release that does not know this: upgrade all nodes first"
        )


def check_able(image: Image, node: int, level: int) -> None:
    """Raises ApiError if a node could not read what is in the log already."""
    if level < image.level:
        raise ApiError(
            ErrorCode.unsupported_version,
            f"node {node} runs a release of level {level}, and the cluster's metadata is of level {image.level}: "
            "start it with the release that the others run",
        )
