"""Who asks another node about a producer's transaction, and wants to know if it ends meanwhile."""

from __future__ import annotations


class Guard:
    """One question."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        self.broken = False


class Guards:
    """All that stand at one partition, by producer id."""

    __slots__ = ("_standing",)

    def __init__(self) -> None:
        self._standing: dict[int, list[Guard]] = {}

    def post(self, producer_id: int) -> Guard:
        """It is to be dismissed."""
        guard = Guard()
        self._standing.setdefault(producer_id, []).append(guard)
        return guard

    def dismiss(self, producer_id: int, guard: Guard) -> None:
        guards = self._standing.get(producer_id, [])
        if guard in guards:
            guards.remove(guard)
            if not guards:
                del self._standing[producer_id]

    def break_one(self, producer_id: int) -> None:
        """A marker of this producer is written."""
        for guard in self._standing.pop(producer_id, ()):
            guard.broken = True

    def break_all(self) -> None:
        """Another node leads."""
        for producer_id in list(self._standing):
            self.break_one(producer_id)
