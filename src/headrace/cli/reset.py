"""Where `group reset` moves a group: targets, the partitions concerned, and the offsets that result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli import moments
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.admin import Place
    from headrace.client.groups import Groups

_WANTED = "earliest, latest, offset:N, time:TIME, shift:N or by-duration:10m"


@dataclass(frozen=True, slots=True)
class Target:
    """`kind` is earliest, latest, offset, shift or time; `number` an offset, a distance or epoch milliseconds."""

    kind: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises UsageError."""
        kind, _, rest = text.strip().replace("=", ":", 1).partition(":")
        if " " in kind:  # "offset 5"
            kind, _, rest = text.strip().partition(" ")
        if kind in ("earliest", "latest") and not rest:
            return cls(kind)
        if kind == "time":
            return cls("time", moments.moment_ms(rest, "--to time"))
        if kind == "by-duration":
            return cls("time", moments.now_ms() - moments.duration_ms(rest, "--to by-duration"))
        if kind in ("offset", "shift"):
            try:
                return cls(kind, int(rest))
            except ValueError:
                raise UsageError(f"--to {kind}: {rest!r} is not a whole number") from None
        raise UsageError(f"--to {text!r} is not {_WANTED}")


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    partition: int
    before: int | None
    after: int


def places(groups: Groups, group: str, specs: list[str]) -> list[Place]:
    """The partitions that `TOPIC[:P,P]` texts name; without any, all that the group has committed."""
    if not specs:
        return sorted(groups.commits(group))
    found: list[Place] = []
    for spec in specs:
        topic, colon, numbers = spec.partition(":")
        if colon and not all(number.isdigit() for number in numbers.split(",")):
            raise UsageError(f"--topic {spec!r} is not TOPIC or TOPIC:P,P")
        known = set(groups.admin.partitions([topic])[topic])
        wanted = {int(number) for number in numbers.split(",")} if colon else known
        if missing := wanted - known:
            raise UsageError(f"topic {topic} has no partition {min(missing)}; it has 0 to {len(known) - 1}")
        found += [(topic, index) for index in sorted(wanted)]
    return found


def plan(groups: Groups, group: str, specs: list[str], target: Target) -> list[Move]:
    """What would change. Offsets are kept between the start and the end of each log."""
    chosen = places(groups, group, specs)
    if not chosen:
        raise UsageError(f"group {group} has committed nothing; name a topic with --topic")
    commits = groups.commits(group)
    starts, ends = groups.admin.offsets(chosen, "earliest"), groups.admin.offsets(chosen, "latest")
    by_time = groups.admin.offsets(chosen, target.number) if target.kind == "time" else {}
    moves = []
    for place in chosen:
        before = commits[place][0] if place in commits else None
        low, high = starts[place], ends[place]
        if target.kind == "earliest":
            wanted = low
        elif target.kind == "latest":
            wanted = high
        elif target.kind == "offset":
            wanted = target.number
        elif target.kind == "shift":
            if before is None:
                raise UsageError(f"group {group} has committed nothing for {place[0]}-{place[1]}: shift from where?")
            wanted = before + target.number
        else:
            wanted = by_time[place] if by_time[place] >= 0 else high
        moves.append(Move(*place, before, min(max(wanted, low), high)))
    return moves
