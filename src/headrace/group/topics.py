"""The topics that groups can read, as the groups see them, and which of them a subscription means.

Rules:
- The topics are given in, and replaced as a whole when they change; nothing here asks for them.
- A pattern is compiled once and tried once on each name. It never means an internal topic.
- A partition is (topic id, index): a topic that is deleted and made again is another topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from headrace.core.limits import INTERNAL_TOPICS
from headrace.group.patterns import Pattern, PatternError

TopicPartition = tuple[UUID, int]
Partitions = frozenset[TopicPartition]
Grouped = tuple[tuple[UUID, tuple[int, ...]], ...]

NOTHING: Final[Partitions] = frozenset()
MATCHING_STEPS: Final = 200_000  # tens of milliseconds; reached by hostile patterns only
KNOWN_PATTERNS: Final = 1_000


class Topic(NamedTuple):
    topic_id: UUID
    partitions: int


class Topics(Protocol):
    """What there is to read at one moment."""

    def find(self, name: str) -> Topic | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> Iterable[str]: ...


class TopicTable:
    """Topics from a mapping."""

    __slots__ = ("_names", "_topics")

    def __init__(self, topics: Mapping[str, Topic] | None = None) -> None:
        self._topics = dict(topics or {})
        self._names = {topic.topic_id: name for name, topic in self._topics.items()}

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._topics


class _Known:
    """A pattern, and what it said about each name."""

    __slots__ = ("matched", "pattern", "said", "topics")

    def __init__(self, text: str) -> None:
        self.pattern = Pattern(text)
        self.said: dict[str, bool] = {}
        self.topics: Topics | None = None
        self.matched: frozenset[str] = frozenset()


class Reading:
    """The topics of the moment, and the patterns that are in use. One for all groups of a machine."""

    __slots__ = ("_patterns", "topics")

    def __init__(self, topics: Topics | None = None) -> None:
        self.topics: Topics = TopicTable() if topics is None else topics
        self._patterns: dict[str, _Known] = {}

    def pattern_fault(self, text: str) -> str | None:
        """Why a pattern is refused, or None."""
        try:
            self._match(self._known(text), MATCHING_STEPS)
        except PatternError as fault:
            return str(fault)
        return None

    def matching(self, text: str) -> frozenset[str]:
        """The topics that a pattern means now. A pattern that was accepted once is not refused later."""
        known = self._known(text)
        self._match(known, None)
        return known.matched

    def _match(self, known: _Known, most_steps: int | None) -> None:
        if known.topics is self.topics:
            return
        said: dict[str, bool] = {}
        before = known.pattern.steps
        for name in self.topics.names():
            answer = known.said.get(name)
            if answer is None:
                if most_steps is not None and known.pattern.steps - before > most_steps:
                    raise PatternError("it takes too long to match against the topics that there are")
                answer = name not in INTERNAL_TOPICS and known.pattern.matches(name)
            said[name] = answer
        known.said = said
        known.topics = self.topics
        known.matched = frozenset(name for name, answer in said.items() if answer)

    def _known(self, text: str) -> _Known:
        known = self._patterns.get(text)
        if known is None:
            known = _Known(text)
            if len(self._patterns) >= KNOWN_PATTERNS:
                del self._patterns[next(iter(self._patterns))]
            self._patterns[text] = known
        return known


def digest(names: Iterable[str], topics: Topics) -> bytes:
    """What a group's topics are, in a few bytes: it changes when one appears, goes, or gets more partitions."""
    sum_ = hashlib.blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics.find(name)
        if topic is not None:
            sum_.update(f"{name}\0{topic.topic_id}\0{topic.partitions}\0".encode())
    return sum_.digest()


def grouped(partitions: Partitions) -> Grouped:
    """By topic, in order: the same partitions always look the same."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return tuple((topic_id, tuple(indexes)) for topic_id, indexes in topics.items())


def flat(topics: Iterable[tuple[UUID, Iterable[int]]]) -> Partitions:
    return frozenset(_pairs(topics))


def _pairs(topics: Iterable[tuple[UUID, Iterable[int]]]) -> Iterator[TopicPartition]:
    return ((topic_id, index) for topic_id, indexes in topics for index in indexes)
