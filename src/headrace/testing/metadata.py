"""A cluster of one node without loop, disk or sockets: what tests of metadata need."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.controller import SNAPSHOT_AFTER, Controller
from headrace.broker.raft_storage import UnsavedStorage

if TYPE_CHECKING:
    from headrace.broker.raft_storage import DurableStorage
    from headrace.core.ports import Workers

T = TypeVar("T")


class InlineWorkers:
    """Workers that work at once, on the loop."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


def lone_controller(
    storage: DurableStorage | None = None,
    *,
    workers: Workers | None = None,
    node_id: int = 1,
    snapshot_after: int = SNAPSHOT_AFTER,
) -> Controller:
    """A loaded controller that leads a quorum of one."""
    controller = Controller(
        storage or UnsavedStorage(),
        workers=workers or InlineWorkers(),
        dice=Random(node_id),
        node_id=node_id,
        snapshot_after=snapshot_after,
    )
    controller.load()
    return controller
