"""Which offsets `consume` reads: the options about start and end, turned into ranges of partitions.

Rules:
- At most one option says where to start. Without any, following starts at the end, and a finite read at the beginning.
- Ends are fixed before the first message is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli import moments
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.admin import Admin, Place
    from headrace.client.reader import Range


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line says."""

    from_beginning: bool = False
    offset: str | None = None
    since: str | None = None
    tail: int | None = None
    until: str | None = None
    partitions: tuple[int, ...] = ()
    follow: bool = True

    def check(self) -> None:
        """Raises UsageError."""
        given = {
            "--from-beginning": self.from_beginning,
            "--offset": self.offset is not None,
            "--since": self.since is not None,
            "--tail": self.tail is not None,
        }
        chosen = [name for name, is_given in given.items() if is_given]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} contradict each other: give one")
        if self.offset is not None and self.offset not in ("earliest", "latest"):
            try:
                int(self.offset)
            except ValueError:
                raise UsageError(f"--offset {self.offset!r} is not a number, -NUMBER, earliest or latest") from None
        for option, text in (("--since", self.since), ("--until", self.until)):
            if text is not None:
                moments.moment_ms(text, option)

    @property
    def starts_at_end(self) -> bool:
        nothing_said = not (self.from_beginning or self.offset or self.since or self.tail is not None)
        return self.offset == "latest" or (nothing_said and self.follow and self.until is None)


def plan(admin: Admin, topics: list[str], wish: Wish) -> list[Range]:
    """The ranges to read. Raises ClientError for an unknown topic, UsageError for an unknown partition."""
    from headrace.client.reader import Range

    places = _places(admin, topics, wish.partitions)
    starts, ends = admin.offsets(places, "earliest"), admin.offsets(places, "latest")
    since = moments.moment_ms(wish.since, "--since") if wish.since is not None else None
    until = moments.moment_ms(wish.until, "--until") if wish.until is not None else None
    firsts = admin.offsets(places, since) if since is not None else {}
    stops = admin.offsets(places, until) if until is not None else {}
    found = []
    for place in places:
        low, high = starts[place], ends[place]
        start = _start(wish, low, high)
        if since is not None:
            start = firsts[place] if firsts[place] >= 0 else high
        stop = None if wish.follow else high
        if until is not None and (stops[place] >= 0 or until <= moments.now_ms()):
            stop = stops[place] if stops[place] >= 0 else high
        found.append(Range(*place, start, stop))
    return found


def _places(admin: Admin, topics: list[str], wanted: tuple[int, ...]) -> list[Place]:
    places: list[Place] = []
    for topic, known in admin.partitions(topics).items():
        if missing := set(wanted) - set(known):
            raise UsageError(f"topic {topic} has no partition {min(missing)}; it has 0 to {len(known) - 1}")
        places += [(topic, index) for index in known if not wanted or index in wanted]
    return places


def _start(wish: Wish, low: int, high: int) -> int:
    if wish.tail is not None:
        return max(low, high - wish.tail)
    if wish.starts_at_end:
        return high
    if wish.offset is None or wish.offset == "earliest":
        return low
    number = int(wish.offset)
    return max(low, high + number) if number < 0 or wish.offset.startswith("-") else max(low, min(number, high))
