"""One node's gossip as a pure machine: packets and time in; packets and events out.

Rules:
- It proposes, others decide: an event says what this node believes. No leadership and no in-sync set follows from it.
- `receive` and `tick` change the state at once; what that asks of the world comes out of `take`.
- A packet that is refused (see `encoding.py`) changes nothing but a count. Nothing that a packet says makes this node
  hold more than its options allow, or send more than one packet to somebody who has sent one.
- A node that has left answers, so that others hear of it, but probes, accuses and asks nobody.
- Pure: chance comes in with `dice`, time with `receive` and `tick`: `now_s` of a monotonic clock, `wall_ms` of the wall
  clock.

A driver is this loop:

    on a datagram:  swim.receive(packet, source, now_s, wall_ms)
    every 50 ms:    swim.tick(now_s, wall_ms)
    after either:   output = swim.take(); send(output.packets); propose(output.events)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.swim.belief import Belief
from headrace.swim.clock import Clock
from headrace.swim.contacts import Contacts
from headrace.swim.detector import Detector
from headrace.swim.encoding import Codec, Refusal, RefusedPacket
from headrace.swim.exchange import Exchange
from headrace.swim.hlc import HybridClock
from headrace.swim.member import Address, Member, State
from headrace.swim.messages import Ack, News, Packet, Ping, PingRequest, Sync, SyncReply
from headrace.swim.options import Dice, SwimOptions, transmissions
from headrace.swim.output import Output
from headrace.swim.post import Post

FAREWELL_ROUNDS = 3


class Swim:
    """See the module. `me` begins alive. Its incarnation should be above those of its earlier lives, for which the wall
    clock at the start is good enough; if it is not, the others say so, and it is raised."""

    def __init__(
        self, me: Member, options: SwimOptions, dice: Dice, *, cluster_id: str, secret: bytes | None = None
    ) -> None:
        self.refused = dict.fromkeys(Refusal, 0)
        self.clock = HybridClock(options.max_drift_ms)
        self._options = options
        self._time = Clock(stride_s=options.probe_timeout_s)
        self._codec = Codec(cluster_id, secret)
        self._belief = Belief(me, options, dice, self._time)
        self._post = Post(self._belief, options, self._codec, self._time, self.clock, dice)
        self._detector = Detector(self._belief, self._post, options, self._time, dice)
        self._exchange = Exchange(self._belief, self._post, options, self._time, dice)
        self._contacts = Contacts(self._belief, self._post, self._exchange, options, self._time, dice)
        self._next_gossip_s = 0.0
        self._farewells = 0

    # What can be seen

    @property
    def me(self) -> Member:
        return self._belief.me

    @property
    def members(self) -> Mapping[int, Member]:
        """All records by node, this node's and those of the gone among them: look at their `state`. A live view."""
        return self._belief.roster.view

    @property
    def living(self) -> int:
        """How many nodes are held to be living, this one among them."""
        return self._belief.roster.living

    @property
    def is_joining(self) -> bool:
        """No full exchange was completed since `join`."""
        return self._contacts.is_joining

    @property
    def has_left(self) -> bool:
        """The farewell was said as often as it will be: the driver may stop."""
        return self.me.state is State.LEFT and (self._farewells >= FAREWELL_ROUNDS or not self._belief.others)

    def skew_ms(self, node_id: int) -> float | None:
        """How far a node's wall clock is ahead of this one's; None if that was never measured."""
        sample = self._detector.clock_of(node_id)
        return sample.offset_ms if sample else None

    def rtt_ms(self, node_id: int) -> float | None:
        """The round trip that the skew was taken from; the skew is wrong by half of it at most."""
        sample = self._detector.clock_of(node_id)
        return sample.rtt_ms if sample else None

    # What happens to it

    def join(self, addresses: Iterable[Address]) -> None:
        """Find the others behind these addresses. None, or only its own: the first node of a cluster."""
        assert self.me.state is State.ALIVE, "a node that has left does not come back under the same machine"
        self._contacts.join(addresses)

    def leave(self) -> None:
        """Say farewell. Go on with `tick` until `has_left`."""
        if self.me.state is State.ALIVE:
            self._belief.leave()
            self._next_gossip_s = self._time.elapsed_s
            self._say_farewell()

    def update(self, rack: str, meta: bytes) -> None:
        """Describe this node anew."""
        self._belief.update(rack, meta)

    def receive(self, packet: bytes, source: Address, now_s: float, wall_ms: int) -> None:
        self._time.advance(now_s, wall_ms)
        try:
            parsed = self._codec.decode(packet)
        except RefusedPacket as refused:
            self.refused[refused.refusal] += 1
            return
        self._belief.hear(parsed.sender)
        if parsed.sender.node_id == self.me.node_id:
            return  # its own, come back; or another node's that goes by its id
        self.clock.update(parsed.stamp, wall_ms)
        for record in parsed.news:
            self._belief.hear(record)
        if parsed.to in (self.me.node_id, -1):
            self._answer(parsed, source)

    def tick(self, now_s: float, wall_ms: int) -> None:
        self._time.advance(now_s, wall_ms)
        if self.me.state is State.LEFT:
            self._say_farewell()
            return
        self._belief.tick()
        self._detector.tick()
        self._exchange.tick()
        self._contacts.tick()
        self._gossip()

    # What it asks for

    def take(self) -> Output:
        """All that has come up since the last time."""
        output = Output(self._post.outgoing, self._belief.events)
        self._post.outgoing, self._belief.events = [], []
        return output

    def _answer(self, packet: Packet, source: Address) -> None:
        body = packet.body
        if isinstance(body, Ping):
            self._detector.on_ping(packet, body, source)
        elif isinstance(body, Ack):
            self._detector.on_ack(packet, body)
            self._contacts.on_ack(packet, body, source)
        elif isinstance(body, PingRequest):
            self._detector.on_ping_request(packet, body, source)
        elif isinstance(body, Sync):
            self._exchange.on_sync(packet, body, source)
        elif isinstance(body, SyncReply):
            self._exchange.on_reply(packet, body)

    def _gossip(self) -> None:
        """News do not wait for the next probe."""
        if not self._belief.news or self._time.elapsed_s < self._next_gossip_s:
            return
        self._next_gossip_s = self._time.elapsed_s + self._options.gossip_interval_s
        for node_id in self._belief.others.pick(self._options.gossip_nodes):
            if self._belief.news:
                self._post.send(node_id, News())

    def _say_farewell(self) -> None:
        if self.has_left or self._time.elapsed_s < self._next_gossip_s:
            return
        self._next_gossip_s = self._time.elapsed_s + self._options.gossip_interval_s
        self._farewells += 1
        count = max(self._options.gossip_nodes, transmissions(self._options, self.living))
        for node_id in self._belief.others.pick(count):
            self._post.send(node_id, News())  # its own record, which has left, is in every packet
