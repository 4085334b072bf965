"""A stage for scenarios: commands by short verbs, answers as short text."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from headrace.group.commands import (
    Answer,
    Command,
    Commit,
    Decision,
    Delete,
    DeleteOffsets,
    Describe,
    Description,
    Fetch,
    FetchAnswer,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    ListGroups,
    Listing,
    Now,
    OffsetToCommit,
    Outcome,
    PartitionErrors,
    Sync,
    SyncAnswer,
)
from headrace.group.machine import Groups
from headrace.group.records import Record
from headrace.group.settings import GroupSettings

SETTINGS = replace(GroupSettings(), min_session_timeout_ms=1_000)
WALL = 1_700_000_000_000


def subscription(*topics: str, version: int = 1, tail: bytes = b"\xff\xff\xff\xff") -> bytes:
    """A consumer's metadata."""
    names = b"".join(len(t.encode()).to_bytes(2, "big") + t.encode() for t in topics)
    return version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + tail


class Stage:
    """One machine, its log, and all answers so far."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.settings = settings
        self.now = Now(0, WALL)
        self.groups = Groups(settings, self.now)
        self.log: list[Record] = []
        self.answers: dict[int, Answer] = {}
        self._tokens = count(1)
        self._ids = count(1)

    # -- the machine

    def take(self, decision: Decision) -> None:
        self.log.extend(decision.records)
        for token, answer in decision.answers:
            assert token not in self.answers, "answered twice"
            self.answers[token] = answer

    def ask(self, command: Command) -> int:
        self.take(self.groups.decide(command, self.now))
        return command.token

    def answer(self, command: Command) -> Any:
        return self.answers[self.ask(command)]

    def wait(self, ms: int) -> None:
        """Let time pass, and call `tick` exactly when it is due."""
        end = self.now.ms + ms
        while (due := self.groups.due()) is not None and due <= end:
            self.now = Now(max(due, self.now.ms), self.now.wall_ms + max(due - self.now.ms, 0))
            self.take(self.groups.tick(self.now))
        self.now = Now(end, self.now.wall_ms + end - self.now.ms)

    def restart(self) -> None:
        """A new machine from the log; those who waited lose their connection."""
        self.groups = reload(self.log, self.settings, self.now)

    # -- verbs

    def join(self, member_id: str = "", *, group: str = "g", protocols: Any = None, **fields: Any) -> int:
        fields = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "new_id": f"m{next(self._ids)}",
            **fields,
        }
        wanted = (("range", subscription("t")),) if protocols is None else protocols
        return self.ask(Join(token=next(self._tokens), group=group, member_id=member_id, protocols=wanted, **fields))

    def sync(self, member_id: str, generation: int, *, group: str = "g", **fields: Any) -> int:
        assignments = tuple(fields.pop("assignments", {}).items())
        return self.ask(
            Sync(
                token=next(self._tokens),
                group=group,
                member_id=member_id,
                generation=generation,
                assignments=assignments,
                **fields,
            )
        )

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", **fields: Any) -> str:
        command = Heartbeat(token=next(self._tokens), group=group, member_id=member_id, generation=generation, **fields)
        return self.said(self.ask(command))

    def leave(self, *members: str | tuple[str, str | None], group: str = "g") -> str:
        pairs = tuple((m, None) if isinstance(m, str) else m for m in members)
        return self.said(self.ask(Leave(token=next(self._tokens), group=group, members=pairs)))

    def commit(self, offset: int = 5, *, topic: str = "t", group: str = "g", metadata: str = "", **fields: Any) -> str:
        item = OffsetToCommit(topic, fields.pop("partition", 0), offset, 3, metadata)
        return self.said(self.ask(Commit(token=next(self._tokens), group=group, offsets=(item,), **fields)))

    def fetch(self, *partitions: tuple[str, int], group: str = "g") -> str:
        return self.said(self.ask(Fetch(token=next(self._tokens), group=group, partitions=partitions or None)))

    def describe(self, group: str = "g") -> Description:
        answer = self.answer(Describe(token=next(self._tokens), group=group))
        assert isinstance(answer, Description)
        return answer

    def state(self, group: str = "g") -> str:
        return self.describe(group).state

    def list(self) -> Listing:
        answer = self.answer(ListGroups(token=next(self._tokens)))
        assert isinstance(answer, Listing)
        return answer

    def delete(self, group: str = "g") -> str:
        return self.said(self.ask(Delete(token=next(self._tokens), group=group)))

    def delete_offsets(self, *partitions: tuple[str, int], group: str = "g") -> str:
        return self.said(self.ask(DeleteOffsets(token=next(self._tokens), group=group, partitions=partitions)))

    # -- ready-made beginnings

    def new_member(self, **fields: Any) -> tuple[str, int]:
        """Ask for an id, join with it; (member id, token of the join)."""
        answer = self.answers[self.join(**fields)]
        assert isinstance(answer, JoinAnswer)
        return answer.member_id, self.join(answer.member_id, **fields)

    def stable(self, count: int = 1, **fields: Any) -> list[str]:
        """A stable group of `count` members in generation 1; each one's assignment is its own name."""
        members = [self.new_member(**fields)[0] for _ in range(count)]
        self.wait(self.settings.initial_rebalance_delay_ms * (count + 1))
        for member in reversed(members):
            self.sync(member, 1, assignments={m: m.encode() for m in members} if member == members[0] else {})
        assert self.state() == "Stable"
        return members

    # -- text

    def said(self, token: int) -> str:
        """The answer as short text."""
        answer = self.answers.get(token)
        match answer:
            case None:
                return "waits"
            case JoinAnswer() if answer.error:
                return f"{answer.error.name} {answer.member_id}".strip()
            case JoinAnswer():
                text = f"{answer.member_id} generation {answer.generation} {answer.protocol} leader {answer.leader}"
                if answer.members:
                    text += " of " + ",".join(m.member_id for m in answer.members)
                return text + (" skip" if answer.skip_assignment else "")
            case SyncAnswer():
                return answer.error.name if answer.error else f"gets {answer.assignment.decode() or 'nothing'}"
            case Outcome():
                return answer.error.name
            case LeaveAnswer():
                return " ".join(error.name for _, _, error in answer.members)
            case PartitionErrors():
                whole = f"{answer.error.name}: " if answer.error else ""
                return whole + " ".join(error.name for error in answer.errors)
            case FetchAnswer():
                return " ".join(
                    f"{o.topic}-{o.partition}@{o.offset}/{o.leader_epoch}{':' + o.metadata if o.metadata else ''}"
                    for o in answer.offsets
                )
        return repr(answer)


def reload(log: list[Record], settings: GroupSettings, now: Now) -> Groups:
    groups = Groups(settings, now)
    for key, value in log:
        groups.replay(key, value, now)
    return groups
