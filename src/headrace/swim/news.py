"""News that still has to be passed on.

Rules:
- One record per node: a newer one takes the place of the older, and begins anew.
- What was passed on least goes first. A record goes out a bounded number of times, then it is left to full exchanges.
- What goes into a packet fits: the room is given in bytes.
"""

from __future__ import annotations

from headrace.swim.member import Member, record_bytes


class NewsQueue:
    def __init__(self) -> None:
        self._rounds: list[dict[int, tuple[Member, int]]] = []  # by how often it went out: record and size by node

    def __len__(self) -> int:
        return sum(map(len, self._rounds))

    def __bool__(self) -> bool:
        return any(self._rounds)

    def put(self, record: Member) -> None:
        self.drop(record.node_id)
        if not self._rounds:
            self._rounds.append({})
        self._rounds[0][record.node_id] = (record, len(record_bytes(record)))

    def drop(self, node_id: int) -> None:
        for waiting in self._rounds:
            if waiting.pop(node_id, None):
                return

    def take(self, room_bytes: int, transmissions: int) -> list[Member]:
        """What goes into the next packet. Each record goes out `transmissions` times in all."""
        taken: list[tuple[int, int, Member, int]] = []
        for count, waiting in enumerate(self._rounds):
            for node_id, (record, size) in waiting.items():
                if size <= room_bytes:
                    room_bytes -= size
                    taken.append((count, node_id, record, size))
            if room_bytes < 16:  # no record is shorter
                break
        for count, node_id, record, size in taken:
            del self._rounds[count][node_id]
            if count + 1 < transmissions:
                if count + 1 == len(self._rounds):
                    self._rounds.append({})
                self._rounds[count + 1][node_id] = (record, size)
        while self._rounds and not self._rounds[-1]:
            self._rounds.pop()
        return [record for _, _, record, _ in taken]
