"""A stage for groups of the new protocol: members by short verbs, what they hear as short text."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from group_stage import SETTINGS, Stage, reload

from headrace.group.commands import (
    ConsumerDescription,
    ConsumerHeartbeat,
    DescribeConsumer,
    Fetch,
    HeartbeatAnswer,
)
from headrace.group.migration import MixedGroup
from headrace.group.topics import Grouped, Topic, TopicTable

PATIENT = replace(SETTINGS, consumer_session_timeout_ms=45_000, consumer_heartbeat_interval_ms=5_000)


class Topics:
    """Topics by name; the same name made again is another topic."""

    def __init__(self, **partitions: int) -> None:
        self._ids = count(1)
        self.topics = {name: Topic(UUID(int=next(self._ids)), number) for name, number in partitions.items()}

    def table(self) -> TopicTable:
        return TopicTable(self.topics)

    def put(self, name: str, partitions: int) -> None:
        old = self.topics.get(name)
        self.topics[name] = Topic(UUID(int=next(self._ids)) if old is None else old.topic_id, partitions)

    def text(self, partitions: Grouped) -> str:
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        return " ".join(
            sorted(f"{names.get(topic, 'gone')}:{','.join(map(str, indexes))}" for topic, indexes in partitions)
        )

    def grouped(self, text: str) -> Grouped:
        pairs = (each.split(":") for each in text.split())
        return tuple((self.topics[name].topic_id, tuple(map(int, indexes.split(",")))) for name, indexes in pairs)


class ConsumerStage(Stage):
    """Group "g" unless told otherwise; topics t (4 partitions) and u (2)."""

    def __init__(self, settings: Any = PATIENT, **topics: int) -> None:
        super().__init__(settings)
        self.topics = Topics(**(topics or {"t": 4, "u": 2}))
        self.show()

    def show(self) -> None:
        self.groups.reading.topics = self.topics.table()

    def restart(self) -> None:
        self.groups = reload(self.log, self.settings, self.now)
        self.show()

    def beat(self, member_id: str, epoch: int, *, group: str = "g", owned: str | None = None, **fields: Any) -> str:
        """What a member hears: "epoch E: partitions", or the error. `owned` is text, as in "t:0,1 u:0"."""
        grouped = None if owned is None else self.topics.grouped(owned)
        command = ConsumerHeartbeat(
            token=next(self._tokens), group=group, member_id=member_id, member_epoch=epoch, owned=grouped, **fields
        )
        self.heard: HeartbeatAnswer = self.answer(command)
        if self.heard.error:
            return self.heard.error.name
        if self.heard.assignment is None:
            return f"epoch {self.heard.member_epoch}"
        return f"epoch {self.heard.member_epoch}: {self.topics.text(self.heard.assignment)}".rstrip()

    def enter(self, member_id: str, *topics: str, **fields: Any) -> str:
        fields = {"rebalance_timeout_ms": 60_000, "topics": topics or ("t",), "owned": "", **fields}
        return self.beat(member_id, 0, **fields)

    def settle(self, *members: str, rounds: int = 6) -> None:
        """Let members beat and obey until the group is stable."""
        for _ in range(rounds):
            for member_id in members:
                stand = self.group().stands[member_id]
                owned = self.topics.text(tuple((topic, (index,)) for topic, index in sorted(stand.assigned)))
                self.beat(member_id, stand.epoch, owned=owned)
        assert self.shown().state == "Stable"

    def group(self, name: str = "g") -> MixedGroup:
        group = self.groups._groups[name]
        assert isinstance(group, MixedGroup)
        return group

    def shown(self, group: str = "g") -> ConsumerDescription:
        answer = self.answer(DescribeConsumer(token=next(self._tokens), group=group))
        assert isinstance(answer, ConsumerDescription)
        return answer

    def has(self, member_id: str) -> str:
        """What a member has, as the broker sees it: "assigned" or "assigned - revoking"."""
        stand = self.group().stands[member_id]
        text = self.topics.text(_grouped(stand.assigned))
        return f"{text} - {self.topics.text(_grouped(stand.revoking))}" if stand.revoking else text

    def fetch_as(self, member_id: str | None, epoch: int) -> str:
        answer = self.answer(
            Fetch(token=next(self._tokens), group="g", partitions=None, member_id=member_id, member_epoch=epoch)
        )
        return answer.error.name

    def durable(self) -> dict[bytes, bytes]:
        """The live records of the machine."""
        return {key: value for key, value in self.groups.snapshot() if value is not None}

    def replayed(self) -> dict[bytes, bytes]:
        """The live records of a machine that was built from the log."""
        groups = reload(self.log, self.settings, self.now)
        groups.reading.topics = self.topics.table()
        return {key: value for key, value in groups.snapshot() if value is not None}


def _grouped(partitions: frozenset[tuple[UUID, int]]) -> Grouped:
    topics: dict[UUID, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return tuple((topic, tuple(indexes)) for topic, indexes in topics.items())
