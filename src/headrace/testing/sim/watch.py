"""Eyes inside the brokers, for what clients cannot see: who leads, and what nodes take for decided.

Rules:
- Production classes are watched from outside, by methods that are replaced for the time of a history and do nothing
  but look and pass on.
- One leader per term of the quorum, one leader per epoch of a partition, one entry per index of the metadata log, one
  image per index: a second one is a violation at the moment it is seen.
- A leader was in sync or eligible before, unless its election is marked as unclean; and its log has all that any living
  replica knows to be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from headrace.broker.controller import Controller
from headrace.broker.image import Image, records_of
from headrace.broker.partition import Partition
from headrace.broker.quorum import Consensus
from headrace.raft.ready import RoleName
from headrace.testing.sim.history import Violation
from headrace.testing.sim.loop import OWNER

if TYPE_CHECKING:
    from headrace.testing.sim.world import World

_encode = msgspec.msgpack.Encoder().encode


class Watch:
    """What was ever seen, by any node in any of its lives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._terms: dict[int, int] = {}
        self._epochs: dict[tuple[str, int, int, Any], int] = {}
        self._entries: dict[int, tuple[int, int]] = {}
        self._images: dict[int, tuple[int, int]] = {}
        self.newest_image: Image | None = None
        self._newest = -1

    @property
    def newest_index(self) -> int:
        return self._newest

    @contextmanager
    def on(self) -> Iterator[None]:
        kept = (Consensus._stand, Controller.apply, Controller.restore, Partition.become_leader)
        stand, apply, restore, lead = kept

        def watched_stand(quorum: Consensus, standing: Any) -> None:
            if standing.role is RoleName.LEADER:
                self._leads(quorum.node_id, standing.term)
            stand(quorum, standing)

        def watched_apply(controller: Controller, entry: Any) -> None:
            self._applies(controller.quorum.node_id, entry)
            apply(controller, entry)
            if entry.index > self._newest:
                before, self.newest_image = self.newest_image, controller.image
                self._newest = entry.index
                self._world.power.look(before)
                self._compare(before, controller.image)
                self._world.programs.look()

        def watched_restore(controller: Controller, snapshot: Any) -> None:
            restore(controller, snapshot)
            self.saw_image(controller.quorum.node_id, snapshot.index, controller.image)

        def watched_lead(partition: Partition, record: Any) -> None:
            if self._world.node_of(OWNER.get()) == record.leader:  # others build partitions in other ways
                self._leads_partition(partition, record)
            lead(partition, record)

        try:
            _put(watched_stand, watched_apply, watched_restore, watched_lead)
            yield
        finally:
            _put(*kept)

    def _fail(self, text: str) -> None:
        self._world.fail(Violation(text))

    def _leads(self, node_id: int, term: int) -> None:
        self._world.note(f"node {node_id} leads term {term}")
        self._world.history.count("terms led")
        if self._terms.setdefault(term, node_id) != node_id:
            self._fail(f"nodes {self._terms[term]} and {node_id} lead term {term}")

    def _leads_partition(self, partition: Partition, record: Any) -> None:
        key = (partition.topic, partition.index, record.leader_epoch, partition.topic_id)
        if key not in self._epochs:
            self._world.note(f"node {record.leader} leads {key[0]}-{key[1]} epoch {key[2]}")
            self._world.history.count("epochs led")
        if self._epochs.setdefault(key, record.leader) != record.leader:
            self._fail(f"nodes {self._epochs[key]} and {record.leader} lead {key[0]}-{key[1]} in epoch {key[2]}")

        newest = None if self.newest_image is None else self.newest_image.partition(partition.topic, partition.index)
        is_late = newest is None or newest.leader_epoch != record.leader_epoch  # others have gone on without it
        if record.unclean_epoch != record.leader_epoch and not is_late:
            self._has_all_committed(partition, record)

    def _has_all_committed(self, partition: Partition, record: Any) -> None:
        for machine in self._world.machines:
            if not machine.is_serving:
                continue
            other = machine.service.partitions.replica(partition.topic, partition.index)
            if other is None or other.topic_id != partition.topic_id or record.unclean_epoch > other.leader_epoch:
                continue
            if other.high_watermark > partition.log.end_offset:
                self._fail(
                    f"node {record.leader} leads {partition.topic}-{partition.index} in epoch {record.leader_epoch} to "
                    f"{partition.log.end_offset}, and node {machine.node_id} knows {other.high_watermark} committed"
                )

    def _compare(self, before: Image | None, now: Image) -> None:
        for name, topic in now.topics.items():
            was = None if before is None else before.topics.get(name)
            if was is None or was is topic or was.topic_id != topic.topic_id:
                continue
            for old, new in zip(was.partitions, topic.partitions, strict=False):
                if new.elr:
                    self._world.history.count("eligible leader replicas")
                clean = new.unclean_epoch == old.unclean_epoch
                # One entry may say that a replica has caught up, that its reassignment is done, and that it leads.
                joined = new.isr if old.removing and not new.removing else ()
                if clean and new.leader not in (-1, *old.isr, *old.elr, *new.adding, *old.adding, *joined):
                    self._fail(f"node {new.leader} is elected for {name}-{new.index}, and was not eligible: {old}")

    def _applies(self, node_id: int, entry: Any) -> None:
        seen = (entry.term, crc32(entry.payload + _encode(entry.membership)))
        if self._entries.setdefault(entry.index, seen) != seen:
            self._fail(f"node {node_id} applies another entry {entry.index} than others did")

    def saw_image(self, node_id: int, index: int, image: Image) -> None:
        print_of = crc32(_encode(sorted(_encode(record) for record in records_of(image))))
        before = self._images.setdefault(index, (print_of, node_id))
        if before[0] != print_of:
            self._fail(f"nodes {before[1]} and {node_id} have different images at index {index}")


def _put(stand: Callable[..., Any], apply: Callable[..., Any], restore: Callable[..., Any], lead: Any) -> None:
    Consensus._stand = stand  # type: ignore[method-assign]
    Controller.apply = apply  # type: ignore[method-assign]
    Controller.restore = restore  # type: ignore[method-assign]
    Partition.become_leader = lead  # type: ignore[method-assign]
