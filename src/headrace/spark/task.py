"""What one task of Spark reads. Light: the driver's planner makes tasks and must not load what opens records."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from headrace.spark.link import Address


@dataclass(frozen=True, slots=True)
class Task:
    """One range to read, with what the driver knew of its partition."""

    topic: str
    partition: int
    start: int
    end: int
    leader: Address
    topic_id: UUID | None = None
    oldest_ms: int = -1
