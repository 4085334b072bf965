"""How the queries of a pipeline go: Spark's progress events made into a few numbers per query.

Rules:
- Lag and rate are counted in offsets of the topics, so they are right also for queries whose rows never enter Spark.
- The last error of a query stays, with its time, until there is another: also when the query runs again, and for the
  next run of the pipeline.
- Nothing here may raise into Spark.
- Spark tells in a thread of its own: whoever looks at the numbers takes a copy (`told`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Watch(StreamingQueryListener):
    """Keeps a document per query, by name; calls `changed` after every event, `say` with a line for every batch."""

    def __init__(
        self,
        changed: Callable[[], None],
        before: Mapping[str, Mapping[str, Any]] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._changed = changed
        self._say = say
        self._before = before or {}  # what the run before this one left, by name
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self.queries: dict[str, dict[str, Any]] = {}

    def follow(self, query_id: str, name: str) -> None:
        """Watch a query. Others in the same session are none of our business."""
        with self._lock:
            self._entry(name)
            self._names[query_id] = name

    def told(self) -> dict[str, dict[str, Any]]:
        """The documents as they are now."""
        with self._lock:
            return {name: dict(entry) for name, entry in self.queries.items()}

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.queries:
            last = self._before.get(name, {})
            self.queries[name] = {
                "batch": -1,
                "rows": 0,
                "rate": 0.0,
                "lag": None,
                "batch_ms": 0,
                "error": last.get("error", ""),
                "error_at": last.get("error_at"),
            }
        return self.queries[name]

    def fail(self, name: str, error: str) -> None:
        with self._lock:
            self._entry(name).update(error=error, error_at=time.time(), rate=0.0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing yet: `follow` comes from whoever started it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        try:
            progress = json.loads(event.progress.json)
            name = self._names.get(str(progress["id"]))
            if name is not None:
                self._take(name, progress)
                self._changed()
        except Exception as error:  # at the edge: a listener must not break Spark's bus
            with self._lock:
                self.queries.setdefault("watch", {})["error"] = repr(error)

    def catch_up(self, name: str, recent: Iterable[Any]) -> None:
        """Take what a query that has ended knows and Spark has not told yet."""
        for each in recent:
            self._take(name, json.loads(each.json))

    def _take(self, name: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            count = self._count(self.queries[name], progress)
            entry = dict(self.queries[name])
        if count:
            left = f", {entry['lag']:,} left" if entry["lag"] else ""
            self._say(f"{name}: batch {entry['batch']}, {count:,} records in {entry['batch_ms']:,} ms{left}")

    def _count(self, entry: dict[str, Any], progress: Mapping[str, Any]) -> int:
        """How many records a batch had that was not counted yet."""
        took_ms = int(progress.get("durationMs", {}).get("triggerExecution", progress.get("batchDuration", 0)))
        read, lag = counted(progress.get("sources", []))
        count = read if read is not None else int(progress.get("numInputRows", 0))
        if int(progress["batchId"]) <= entry["batch"]:
            return 0
        entry["lag"] = lag
        if not count:
            return 0
        entry.update(
            batch=int(progress["batchId"]),
            rows=entry["rows"] + count,
            rate=round(count / took_ms * 1000, 1) if took_ms else 0.0,
            batch_ms=took_ms,
            at=time.time(),
        )
        return count

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        name = self._names.get(str(event.id))
        if name is not None:
            with self._lock:
                self.queries[name].update(rate=0.0, lag=0)
            self._changed()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The runner sees to it."""


def counted(sources: list[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Offsets read in a batch, and how many are left; None if no source counts in offsets."""
    read: int | None = None
    lag: int | None = None
    for source in sources:
        start, end, latest = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        if end is None:
            continue
        read = (read or 0) + sum(max(0, end[key] - (start or {}).get(key, 0)) for key in end)
        if latest is not None:
            lag = (lag or 0) + sum(max(0, latest[key] - end.get(key, 0)) for key in latest)
    return read, lag


def _offsets(found: Any) -> dict[tuple[str, str], int] | None:
    """`{"topic":{"0":n}}`, or a table's `{"version":v,"row":n}`, flat."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None
    if not isinstance(found, dict):
        return None
    if "row" in found:
        return {("table", "0"): int(found["row"])}
    flat: dict[tuple[str, str], int] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            return None
        flat |= {(topic, partition): int(offset) for partition, offset in partitions.items()}
    return flat
