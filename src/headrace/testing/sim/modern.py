"""A member of a group of the new protocol (KIP-848): the broker assigns, and members report what they hold.

Rules:
- A member brings its id, and an epoch that only the broker raises. Fenced, it lets go of everything and joins anew.
- It takes what it is told to take, and lets go of what it is told to let go of before it says so.
- Like every member it starts where the group has committed; that is never before what was acknowledged earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import GROUP, Client, Partition, Unknown
from headrace.testing.sim.consumers import SESSION_MS, Member, Rejoin
from headrace.testing.sim.history import History, Violation

HEARTBEAT, OFFSET_COMMIT, OFFSET_FETCH = (68, 1), (8, 9), (9, 9)
FENCED: Final = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found})
LEAVE: Final = -1
FLAGS: Final = {"group.consumer_session_timeout_ms": "2500", "group.consumer_heartbeat_interval_ms": "500"}


class ModernMember(Member):
    """See the module."""

    commit_api = OFFSET_COMMIT

    def __init__(self, client: Client, history: History, group: str, partitions: Sequence[Partition]) -> None:
        super().__init__(client, history, group, partitions)
        self._topic = partitions[0][0]
        self._topic_id: UUID | None = None
        self._member_id = self._new_id()
        self._generation = 0  # the member's epoch
        self._reported: list[Partition] | None = None

    def _new_id(self) -> str:
        return str(UUID(int=self._client.dice.getrandbits(128)))

    def _check(self, error: ErrorCode) -> None:
        if error in FENCED:
            self._let_go()
            self._history.count("members of the new protocol fenced")
            raise Rejoin
        if error == ErrorCode.stale_member_epoch:
            raise Rejoin  # it has moved on; the next heartbeat tells
        super()._check(error)

    def _let_go(self) -> None:
        self._generation, self._owned, self._reported = 0, [], None

    async def _join(self) -> None:
        """One heartbeat: the first of an epoch, or one after trouble, in which everything is told again."""
        if self._topic_id is None:
            found = await self._client.metadata([self._topic])
            self._topic_id = found.topics[0].topic_id
        await self._beat(everything=True)

    async def _beat(self, *, everything: bool = False) -> None:
        request: dict[str, Any] = {"member_id": self._member_id, "member_epoch": self._generation}
        holds = list(self._owned)
        if everything or self._generation == 0:
            request |= {"rebalance_timeout": SESSION_MS, "subscribed_topic_names": [self._topic]}
        if everything or holds != self._reported:
            indexes = [index for _, index in holds]
            request["topic_partitions"] = [{"topic_id": self._topic_id, "partitions": indexes}] if indexes else []
        else:
            request["topic_partitions"] = None
        answer = await self._ask(HEARTBEAT, request)
        self._check(answer.error_code)
        self._reported = holds
        if answer.member_epoch < self._generation:
            raise Violation(f"the epoch of {self._client.name} went back to {answer.member_epoch}")
        if answer.member_epoch > self._generation:
            self._history.count("epochs of the new protocol")
        self._generation = answer.member_epoch
        if answer.assignment is not None:
            await self._take(
                [(self._topic, index) for topic in answer.assignment.topic_partitions for index in topic.partitions]
            )

    async def _take(self, assigned: list[Partition]) -> None:
        """Commit what is to be given up, let go of it, and take what is new."""
        if any(each not in assigned for each in self._owned):
            await self._commit()
        self._owned = [each for each in self._owned if each in assigned]
        for partition in assigned:
            if partition not in self._owned:
                await self._begin(partition)
                self._owned.append(partition)
                self._history.count("partitions taken in the new protocol")

    async def _resume(self) -> None:
        """Every partition was begun when it was taken."""

    async def _begin(self, partition: Partition) -> None:
        known = self._history.commits.get((self.group, partition), 0)
        wanted = {"name": partition[0], "partition_indexes": [partition[1]]}
        group = {
            "group_id": self.group,
            "member_id": self._member_id,
            "member_epoch": self._generation,
            "topics": [wanted],
        }
        where = await self._client.coordinator(self.group, GROUP)
        answer = await self._client.call(where, OFFSET_FETCH, {"groups": [group], "require_stable": True})
        [found] = answer.groups
        self._check(found.error_code)
        [[row]] = [topic.partitions for topic in found.topics]
        self._check(row.error_code)
        self._positions[partition] = max(0, row.committed_offset)
        self._history.resumed(self.group, partition, self._positions[partition], known)

    async def _round(self) -> None:
        mood = self._client.dice.random() if self.restless else 1.0
        if mood < 0.08:
            await self._leave()  # and come back as somebody else
            self._let_go()
            self._member_id = self._new_id()
            raise Rejoin
        if mood < 0.12:
            await self._client.pause(4.0)  # longer than a session: others take over, and it is fenced
        for partition in self._owned:
            await self._read(partition)
        await self._commit()
        await self._beat()
        await self._client.pause(0.4)

    async def _leave(self) -> None:
        try:
            await self._ask(HEARTBEAT, {"member_id": self._member_id, "member_epoch": LEAVE, "topic_partitions": None})
        except Unknown:
            pass
