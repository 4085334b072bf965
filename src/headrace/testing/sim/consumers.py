"""Readers of the simulation: a member of a classic group, and a reader of everything at the end.

Rules:
- Whoever reads notes what stands where: (partition, offset) means one value for everybody and for ever.
- A member starts where the group has committed; that is never before what was acknowledged earlier.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import (
    GROUP,
    HEARTBEAT,
    JOIN_GROUP,
    LATER,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    Client,
    Partition,
    Unknown,
)
from headrace.testing.sim.history import History, Violation
from headrace.testing.transactions import committed_in
from headrace.wire import batch

REJOIN: Final = frozenset(
    {
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.member_id_required,
    }
)
SESSION_MS: Final = 6000


class Rejoin(Exception):
    """The group has moved on without us."""


class Member:
    """Joins, reads its share, commits, and does it again."""

    commit_api = OFFSET_COMMIT

    def __init__(self, client: Client, history: History, group: str, partitions: Sequence[Partition]) -> None:
        self._client = client
        self._history = history
        self.group = group
        self._partitions = list(partitions)
        self._member_id = ""
        self._generation = -1
        self._owned: list[Partition] = []
        self._positions: dict[Partition, int] = {}
        self.running = True
        self.restless = True  # until the cluster is healed

    async def run(self) -> None:
        while self.running:
            try:
                await self._join()
                await self._resume()
                while self.running:
                    await self._round()
            except Rejoin:
                await self._client.pause(0.05)
            except Unknown:
                self._client.moved((self.group, GROUP))
                await self._client.pause(0.1)
        await self._leave()

    @property
    def positions(self) -> dict[Partition, int]:
        return {each: self._positions.get(each, 0) for each in self._owned}

    async def _ask(self, api: tuple[int, int], request: dict[str, Any], timeout_s: float = 3.0) -> Any:
        where = await self._client.coordinator(self.group, GROUP)
        return await self._client.call(where, api, {"group_id": self.group, **request}, timeout_s)

    def _check(self, error: ErrorCode) -> None:
        """Raises Rejoin or Unknown for what a client survives."""
        if error == ErrorCode.none:
            return
        if error in LATER:
            self._client.moved((self.group, GROUP))
            raise Unknown(error.name)
        if error in REJOIN:
            if error in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                self._member_id = ""
            raise Rejoin
        raise Violation(f"{self._client.name} of {self.group} got {error.name}")

    async def _join(self) -> None:
        self._owned = []
        while True:
            joined = await self._ask(
                JOIN_GROUP,
                {
                    "session_timeout": SESSION_MS,
                    "rebalance_timeout": SESSION_MS,
                    "member_id": self._member_id,
                    "protocol_type": "consumer",
                    "protocols": [{"name": "range", "metadata": b""}],
                },
                timeout_s=SESSION_MS / 1000 + 3,
            )
            if joined.error_code == ErrorCode.member_id_required:
                self._member_id = joined.member_id
                continue
            self._check(joined.error_code)
            break
        self._member_id, self._generation = joined.member_id, joined.generation_id
        shares = []
        if joined.leader == joined.member_id:
            members = sorted(member.member_id for member in joined.members)
            for place, member in enumerate(members):
                share = json.dumps(self._partitions[place :: len(members)]).encode()
                shares.append({"member_id": member, "assignment": share})
        synced = await self._ask(
            SYNC_GROUP,
            {
                "generation_id": self._generation,
                "member_id": self._member_id,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": shares,
            },
            timeout_s=SESSION_MS / 1000 + 3,
        )
        self._check(synced.error_code)
        self._owned = [(topic, index) for topic, index in json.loads(synced.assignment or b"[]")]
        self._history.count("generations joined")

    async def _resume(self) -> None:
        self._positions = {}
        known = {each: self._history.commits.get((self.group, each), 0) for each in self._owned}
        for partition in self._owned:
            topic, index = partition
            wanted = {"topics": [{"name": topic, "partition_indexes": [index]}], "require_stable": True}
            answer = await self._ask(OFFSET_FETCH, wanted)
            self._check(answer.error_code)
            [[row]] = [each.partitions for each in answer.topics]
            self._check(row.error_code)
            self._positions[partition] = max(0, row.committed_offset)
            self._history.resumed(self.group, partition, self._positions[partition], known[partition])

    async def _round(self) -> None:
        for partition in self._owned:
            await self._read(partition)
        beat = await self._ask(HEARTBEAT, {"generation_id": self._generation, "member_id": self._member_id})
        self._check(beat.error_code)
        await self._commit()
        await self._client.pause(0.4)

    async def _read(self, partition: Partition) -> None:
        offset = self._positions[partition]
        try:
            row = await self._client.fetch(partition, offset, committed_only=True, wait_ms=50)
        except Unknown:
            return
        if row.error_code in LATER:
            return
        if row.error_code != ErrorCode.none:
            raise Violation(f"{self._client.name} got {row.error_code.name} at {partition} {offset}")
        for at, value in take(row, offset):
            self._history.read(partition, at, value, by=self._client.name)
            self._history.count("consumed")
        self._positions[partition] = next_position(row, offset)

    async def _commit(self) -> None:
        if not self._owned:
            return
        parts = [(partition, self._positions[partition]) for partition in self._owned]
        topics = [
            {"name": topic, "partitions": [{"partition_index": index, "committed_offset": offset}]}
            for (topic, index), offset in parts
        ]
        answer = await self._ask(
            self.commit_api,
            {
                "generation_id_or_member_epoch": self._generation,
                "member_id": self._member_id,
                "topics": topics,
            },
        )
        for (partition, offset), topic in zip(parts, answer.topics, strict=True):
            [row] = topic.partitions
            self._check(row.error_code)
            self._history.committed(self.group, partition, offset)

    async def _leave(self) -> None:
        try:
            await self._ask(LEAVE_GROUP, {"members": [{"member_id": self._member_id}]})
        except Unknown:
            pass


def take(row: Any, offset: int) -> list[tuple[int, bytes | None]]:
    """(offset, value) of the records in one partition's answer that a reader of committed records takes."""
    aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
    return committed_in(row.records or b"", aborted, offset=offset)


def next_position(row: Any, offset: int) -> int:
    return max([offset, *(each.base_offset + each.last_offset_delta + 1 for each in batch.headers(row.records or b""))])


async def read_all(
    client: Client, partition: Partition, *, committed_only: bool
) -> tuple[list[tuple[int, bytes | None]], int]:
    """Everything that can be read of a partition now, and the offset behind it. Tries until it can."""
    offset = 0
    found: list[tuple[int, bytes | None]] = []
    while True:
        try:
            row = await client.fetch(partition, offset, committed_only=committed_only, wait_ms=0)
        except Unknown:
            await client.pause(0.1)
            continue
        if row.error_code in LATER:
            await client.pause(0.1)
            continue
        if row.error_code != ErrorCode.none:
            raise Violation(f"the final reader got {row.error_code.name} at {partition} {offset}")
        content = row.records or b""
        if committed_only:
            found += take(row, offset)
        else:
            found += [
                (record.offset, record.value)
                for each in batch.headers(content)
                if not batch.is_control(each)
                for record in batch.records(content, each)
                if record.offset >= offset
            ]
        after = next_position(row, offset)
        end = row.last_stable_offset if committed_only else row.high_watermark
        if after == offset or after >= end:
            if after < end:
                await client.pause(0.05)
                continue
            return found, after
        offset = after
