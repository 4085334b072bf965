"""Drives the gossip machine: packets in and out, time, and what is made of the news.

Rules:
- Gossip begins when there is somebody to gossip with, and ends when there is nobody: a node alone opens no port.
- It only hints. A death goes to the controller's watch over the nodes, which decides by missed beats; an address goes
  to the address book.
- Without a secret only this machine is believed, as on the nodes' other connections.
- Without the datagram port a node does without gossip; beats and Raft do not need it.
- Clocks: the estimated skew of each peer is there to be shown; beyond the limit it is warned of, once per peer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.swim.machine import Swim
from headrace.swim.member import Member
from headrace.swim.options import LAN, LOCAL
from headrace.swim.output import Event, IdentityContested, MemberDied, MemberJoined, MemberUpdated

if TYPE_CHECKING:
    from headrace.broker.cluster_settings import ClusterSettings
    from headrace.broker.image import BrokerRecord, Image
    from headrace.core.ports import Address, Clock, Datagrams, Dice, Network

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
LEAVE_TICKS: Final = 8
COMPARE_TICKS: Final = 100  # between looks at the clocks


class Gossip:
    """See the module. `changed` is subscribed to the controller."""

    def __init__(
        self,
        network: Network,
        dice: Dice,
        clock: Clock,
        settings: ClusterSettings,
        *,
        cluster_id: str,
        bind: Address,
        on_death: Callable[[int], None],
        on_address: Callable[[int, Address], None],
    ) -> None:
        self._network = network
        self._dice = dice
        self._clock = clock
        self._settings = settings
        self._cluster_id = cluster_id
        self._bind = bind
        self._on_death = on_death
        self._on_address = on_address
        self._node_id = -1
        self._others: list[BrokerRecord] = []
        self._swim: Swim | None = None
        self._datagrams: Datagrams | None = None
        self._leaving = False
        self._task: asyncio.Task[None] | None = None
        self._warned: dict[int, None] = {}

    def skew_of(self, node: int) -> float | None:
        """How far a node's clock is ahead of ours, in ms, as far as that is known."""
        return None if self._swim is None else self._swim.skew_ms(node)

    def belief_of(self, node: int) -> str | None:
        """What gossip believes of a node: alive, suspect, dead or left; None if it knows nothing."""
        member = None if self._swim is None else self._swim.members.get(node)
        return None if member is None else member.state.name.lower()

    def start(self, node_id: int, image: Image) -> None:
        """This node is registered: gossip, as soon as there is somebody."""
        self._node_id = node_id
        self.changed(image, image)

    def changed(self, old: Image, new: Image) -> None:
        us = new.brokers.get(self._node_id)
        if us is None or not self._settings.gossip or self._leaving:
            return
        self._others = [node for node in new.brokers.values() if node.node_id != self._node_id]
        if self._others and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(us), name="gossip")
        if self._swim is not None and len(new.brokers) > len(old.brokers):
            self._swim.join(self._seeds())
        if not self._others and self._task is not None:
            self._task.cancel()
            self._task = None

    def _seeds(self) -> list[Address]:
        return [(node.host, node.port) for node in self._others]

    async def stop(self) -> None:
        """Say that we leave, and be silent."""
        self._leaving = True
        task, self._task = self._task, None
        swim = self._swim
        if task is None:
            return
        if swim is not None:
            swim.leave()
            for _ in range(LEAVE_TICKS):
                if swim.has_left:
                    break
                self._tick(swim)
                await asyncio.sleep(TICK_S)
        task.cancel()
        await asyncio.wait([task])

    async def _run(self, us: BrokerRecord) -> None:
        try:
            self._datagrams = await self._network.datagrams(*self._bind, self._receive)
        except OSError as error:
            logger.warning("this node does not gossip: the datagram port is taken", extra={"reason": str(error)})
            return
        me = Member(us.node_id, us.host, us.port, max(0, self._clock.now_ms()), rack=us.rack or "")
        secret = self._settings.secret.encode() if self._settings.secret else None
        options = LOCAL if is_local(us.host) else LAN
        swim = Swim(me, options, self._dice, cluster_id=self._cluster_id, secret=secret)
        try:
            self._swim = swim
            swim.join(self._seeds())
            for tick in itertools.count():
                self._tick(swim)
                if tick % COMPARE_TICKS == 0:
                    self._compare_clocks(swim)
                await asyncio.sleep(TICK_S)
        finally:
            self._swim = None
            self._datagrams.close()
            self._datagrams = None

    def _tick(self, swim: Swim) -> None:
        swim.tick(asyncio.get_running_loop().time(), self._clock.now_ms())
        self._carry_out(swim)

    def _receive(self, packet: bytes, source: Address) -> None:
        swim = self._swim
        if swim is not None and (self._settings.secret or is_local(source[0])):
            swim.receive(packet, source, asyncio.get_running_loop().time(), self._clock.now_ms())
            self._carry_out(swim)

    def _carry_out(self, swim: Swim) -> None:
        output = swim.take()
        if self._datagrams is not None:
            for host, port, packet in output.packets:
                self._datagrams.send(packet, (host, port))
        for event in output.events:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        member = event.member
        match event:
            case MemberDied():
                logger.info("gossip believes a node dead", extra={"node": member.node_id})
                self._on_death(member.node_id)
            case MemberJoined() | MemberUpdated() if member.is_living and member.node_id != self._node_id:
                self._on_address(member.node_id, member.address)
            case IdentityContested():
                logger.critical(
                    "another node goes by this node's id: stop one of them",
                    extra={"node": member.node_id, "address": f"{member.host}:{member.port}"},
                )

    def _compare_clocks(self, swim: Swim) -> None:
        for node in [one.node_id for one in self._others]:
            skew_ms = swim.skew_ms(node)
            if skew_ms is None or abs(skew_ms) <= self._settings.max_skew_ms:
                self._warned.pop(node, None)
            elif node not in self._warned:
                self._warned[node] = None
                logger.warning("a node's clock is wrong, or ours", extra={"node": node, "ahead_ms": round(skew_ms)})


def is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
