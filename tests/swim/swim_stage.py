"""One machine, driven by hand: packets from imagined peers in, decoded packets and events out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headrace.swim.encoding import Codec
from headrace.swim.machine import Swim
from headrace.swim.member import Address, Member, State
from headrace.swim.messages import Ack, Body, News, Packet
from headrace.swim.options import SwimOptions
from headrace.swim.output import Event

CLUSTER = "mill"
WALL_MS = 1_800_000_000_000
TICK_S = 0.1
Kind = TypeVar("Kind")


class Least:
    """Dice that always show the least."""

    def randrange(self, stop: int, /) -> int:
        return 0


def member(node_id: int, incarnation: int = 0, state: State = State.ALIVE, **details) -> Member:
    return Member(
        node_id, details.pop("host", f"node{node_id}"), details.pop("port", 7946), incarnation, state, **details
    )


class Solo:
    """Node 1, and as many others as a test imagines. They answer its probes, unless they are `silent`."""

    def __init__(
        self,
        peers: Sequence[int] = (),
        options: SwimOptions | None = None,
        secret: bytes | None = None,
        me: Member | None = None,
    ) -> None:
        self.swim = Swim(me or member(1), options or SwimOptions(), Least(), cluster_id=CLUSTER, secret=secret)
        self.codec = Codec(CLUSTER, secret)
        self.now_s = 100.0
        self.sizes: list[int] = []
        self.sent: list[tuple[Address, Packet]] = []
        self.events: list[Event] = []
        for peer in peers:
            self.hear(member(peer))
        self.forget()

    @property
    def wall_ms(self) -> int:
        return WALL_MS + round(self.now_s * 1000)

    def forget(self) -> None:
        """What was sent and told up to now, news that were not sent yet included."""
        self.collect()
        self.swim._belief.news._rounds.clear()
        self.sent, self.events = [], []

    def collect(self) -> None:
        output = self.swim.take()
        for host, port, raw in output.packets:
            self.sizes.append(len(raw))
            self.sent.append(((host, port), self.codec.decode(raw)))
        self.events.extend(output.events)

    def hear(
        self,
        sender: Member,
        body: Body | None = None,
        news: Sequence[Member] = (),
        to: int = 1,
        wall_ms: int | None = None,
        stamp: int = 0,
        source: Address | None = None,
    ) -> list[Packet]:
        """A packet arrives; what it is answered with."""
        packet = Packet(
            CLUSTER, sender, to, self.wall_ms if wall_ms is None else wall_ms, stamp, body or News(), tuple(news)
        )
        return self.receive(self.codec.encode(packet), source or sender.address)

    def receive(self, raw: bytes, source: Address = ("node2", 7946)) -> list[Packet]:
        before = len(self.sent)
        self.swim.receive(raw, source, self.now_s, self.wall_ms)
        self.collect()
        return [packet for _, packet in self.sent[before:]]

    def tick(self, step_s: float = TICK_S) -> list[Packet]:
        before = len(self.sent)
        self.now_s += step_s
        self.swim.tick(self.now_s, self.wall_ms)
        self.collect()
        return [packet for _, packet in self.sent[before:]]

    def run(self, seconds: float, answering: Sequence[int] = ()) -> list[Packet]:
        """Let time pass; those who answer acknowledge every ping at once."""
        before = len(self.sent)
        for _ in range(round(seconds / TICK_S)):
            for packet in self.tick():
                if packet.to in answering and type(packet.body).__name__ == "Ping":
                    self.hear(self.swim.members[packet.to], Ack(packet.body.number, packet.to))
        return [packet for _, packet in self.sent[before:]]

    def until(self, kind: type[Kind], seconds: float = 5.0, to: int | None = None) -> tuple[Packet, Kind]:
        """Let time pass until a packet of a kind leaves."""
        for _ in range(round(seconds / TICK_S)):
            for packet in self.tick():
                if isinstance(packet.body, kind) and to in (None, packet.to):
                    return packet, packet.body
        raise AssertionError(f"no {kind.__name__} within {seconds} s")

    def state(self, node_id: int) -> State | None:
        found = self.swim.members.get(node_id)
        return None if found is None else found.state
