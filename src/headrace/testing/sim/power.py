"""Who may lose power where acknowledgements do not wait for the disk, so that a promise is left to be kept.

Rules:
- With `flush=os` and `flush=interval` what was acknowledged lies in the page caches of the replicas that are in sync or
  eligible (KIP-966). The promise: nothing is lost while one of them keeps its power. So a machine loses it only while,
  by the newest image that anybody has applied, every partition that it is such a replica of has another *intact* one.
- Intact is who has lost no power since it last registered. Until a node without power has registered anew, the
  controller cannot know what it lost; and then it must not count as in sync for it. That is what is tried here.
- The sets may shrink later, while a node without power is still in them, until only such nodes are left (the others
  were killed or cut off, fenced, and are not eligible). Then nobody is known to have everything, no promise is left,
  and the history ends.
- A disk that has failed is given up at the next restart with all that was not synced: the same as a loss of power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.directory import STARTS

if TYPE_CHECKING:
    from headrace.broker.image import Image, PartitionRecord
    from headrace.testing.files import FaultyFiles
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World


class Forfeit(Exception):
    """All in-sync replicas of a partition have lost power: nothing more can be asked of this history."""


class Power:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dark: dict[int, int] = {}  # by node: the number of its last start when it lost what was not synced

    def may_go(self, machine: Machine) -> bool:
        """Whether this machine may lose all that it has not synced."""
        if self._world.flush == "ack":
            return True
        if self._world.watch.newest_image is None:
            return False
        return all(machine.node_id not in _all(each) or self._is_guarded(each, machine) for each in self._records())

    def look(self, before: Image | None) -> None:
        """There is a new image. Who lost nothing and was put out because it registered is the broker's own fault."""
        if not self._dark or self._world.flush == "ack" or before is None:
            return
        now = self._world.watch.newest_image
        assert now is not None
        starts = {node.node_id: node.start for node in before.brokers.values()}
        registered = any(node.start > starts.get(node.node_id, 0) for node in now.brokers.values())
        for record in [] if registered else self._records():
            was = before.partition(record.topic, record.index)
            had = was is not None and any(self._is_intact(node) for node in _all(was))
            if had and not any(self._is_intact(node) for node in _all(record)):
                self._world.fail(
                    Forfeit(f"nobody in sync with, or eligible for, {record.topic}-{record.index} has kept its power")
                )

    def _records(self) -> list[PartitionRecord]:
        image = self._world.watch.newest_image
        assert image is not None
        topics = [topic for topic in image.topics.values() if not topic.name.startswith("__")]
        return [record for topic in topics for record in topic.partitions]

    def _is_guarded(self, record: PartitionRecord, machine: Machine) -> bool:
        return any(node != machine.node_id and self._is_intact(node) for node in _all(record))

    def _is_intact(self, node: int) -> bool:
        image = self._world.watch.newest_image
        assert image is not None
        return node in image.brokers and image.brokers[node].start > self._dark.get(node, -1)

    def goes(self, machine: Machine) -> None:
        """It loses its power now, or will at its next restart."""
        starts = machine.files.peek(STARTS) if STARTS in machine.files.paths() else b"0"
        self._dark[machine.node_id] = int(starts)

    def lose(self, machine: Machine) -> None:
        """Cut it, and count what that has cost."""
        before = machine.files
        self.goes(machine)
        machine.lose_power()
        if self._world.flush != "ack":
            self._world.history.count("unsynced logs cut", _logs_cut(before, machine.files))


def _all(record: PartitionRecord) -> tuple[int, ...]:
    """The nodes that have everything that is committed, by what was decided."""
    return (*record.isr, *record.elr)


def _logs_cut(before: FaultyFiles, after: FaultyFiles) -> int:
    logs = [path for path in before.paths() if path.startswith("topics/") and path.endswith(".log")]
    logs = [path for path in logs if not path.startswith("topics/__")]
    left = set(after.paths())
    return sum(path not in left or after.peek(path) != before.peek(path) for path in logs)
