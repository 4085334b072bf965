"""Packets on their way out.

Rules:
- No packet is longer than `packet_bytes`. What is left of it is filled with news.
- A packet to a node that is not held to be alive says so first: so the one who can refute hears of it soonest.
"""

from __future__ import annotations

from headrace.swim.belief import Belief
from headrace.swim.clock import Clock
from headrace.swim.encoding import Codec
from headrace.swim.hlc import HybridClock
from headrace.swim.member import ANYONE, Address, Member, State
from headrace.swim.messages import Body, Packet
from headrace.swim.options import Dice, SwimOptions, transmissions

ARRAY_GROWTH_BYTES = 2  # an array of more than 15 items has a longer head than an empty one


class Post:
    def __init__(
        self, belief: Belief, options: SwimOptions, codec: Codec, clock: Clock, hybrid: HybridClock, dice: Dice
    ) -> None:
        self.outgoing: list[tuple[str, int, bytes]] = []
        self._belief = belief
        self._options = options
        self._codec = codec
        self._clock = clock
        self._hybrid = hybrid
        self._number = dice.randrange(2**32)  # a late answer to an earlier life is not taken for one to this

    def number(self) -> int:
        self._number += 1
        return self._number

    def room_bytes(self, body: Body) -> int:
        """How much may be added to this body, besides a correction."""
        return self._options.packet_bytes - self._codec.size_bytes(self._packet(ANYONE, body, ())) - ARRAY_GROWTH_BYTES

    def send(self, node_id: int, body: Body) -> None:
        """To a member, at the address where it is held to be."""
        member = self._belief.roster.view[node_id]
        self.send_to(member.address, node_id, body, member if member.state is not State.ALIVE else None)

    def send_to(self, address: Address, to: int, body: Body, correction: Member | None = None) -> None:
        first = () if correction is None else (correction,)
        packet = self._packet(to, body, first)
        news = self._belief.news
        if news:
            room = self._options.packet_bytes - self._codec.size_bytes(packet) - ARRAY_GROWTH_BYTES
            packet.news = (*first, *news.take(room, transmissions(self._options, self._belief.roster.living)))
        self.outgoing.append((*address, self._codec.encode(packet)))

    def send_page(self, address: Address, to: int, body: Body) -> None:
        """A body that fills the packet."""
        self.outgoing.append((*address, self._codec.encode(self._packet(to, body, ()))))

    def _packet(self, to: int, body: Body, news: tuple[Member, ...]) -> Packet:
        wall_ms = max(0, self._clock.wall_ms)
        return Packet(self._codec.cluster_id, self._belief.me, to, wall_ms, self._hybrid.now(wall_ms), body, news)
