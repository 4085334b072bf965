"""The failure detector: probe one node after the other, and ask others before accusing.

Rules:
- One probe in each `probe_interval_s`. Without an answer within `probe_timeout_s`, some others are asked to probe the
  same node. Without any answer by the end of the interval, it is suspected. An answer that comes late, or by way of
  another, counts the same.
- Only the node that was meant can answer, or one that was asked to probe it; and only to this probe's number.
- A node that is asked probes the address that it knows itself. It remembers a bounded number of such favours.
- Only answers that came straight tell anything about the other's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.swim.belief import Belief
from headrace.swim.clock import Clock
from headrace.swim.member import Address
from headrace.swim.messages import Ack, Packet, Ping, PingRequest
from headrace.swim.options import Dice, SwimOptions
from headrace.swim.post import Post
from headrace.swim.skew import Sample, Sending, Skew

MAX_FAVOURS: Final = 1_000


@dataclass(slots=True)
class Probe:
    number: int
    target: int
    sent: Sending
    ask_at_s: float
    is_answered: bool = False
    has_asked: bool = False


@dataclass(frozen=True, slots=True)
class Favour:
    """A probe in another node's place."""

    address: Address
    asker: int
    number: int
    target: int
    until_s: float


class Detector:
    def __init__(self, belief: Belief, post: Post, options: SwimOptions, clock: Clock, dice: Dice) -> None:
        self._belief = belief
        self._post = post
        self._options = options
        self._clock = clock
        self._probe: Probe | None = None
        self._next_probe_s = options.probe_interval_s * dice.randrange(1000) / 1000  # not all at the same time
        self._favours: dict[int, Favour] = {}  # by number, oldest first
        self._skews: dict[int, Skew] = {}

    def clock_of(self, node_id: int) -> Sample | None:
        found = self._skews.get(node_id)
        return found.best if found else None

    def tick(self) -> None:
        elapsed_s = self._clock.elapsed_s
        self._drop_favours(elapsed_s)
        probe = self._probe
        if probe and not probe.is_answered and not probe.has_asked and elapsed_s >= probe.ask_at_s:
            probe.has_asked = True
            for helper in self._belief.others.pick(self._options.indirect_probes, without=(probe.target,)):
                self._post.send(helper, PingRequest(probe.number, probe.target))
        if elapsed_s >= self._next_probe_s:
            # By the plan, so that late ticks do not add up; but nobody is given less than its time after a stop.
            behind = elapsed_s - self._next_probe_s > self._options.probe_timeout_s / 2
            self._next_probe_s = (elapsed_s if behind else self._next_probe_s) + self._options.probe_interval_s
            if probe and not probe.is_answered:
                self._belief.suspect(probe.target)
            self._begin()

    def on_ping(self, packet: Packet, body: Ping, source: Address) -> None:
        correction = self._belief.correction(packet.sender)
        ack = Ack(body.number, self._belief.me.node_id)
        self._post.send_to(source, packet.sender.node_id, ack, correction)

    def on_ping_request(self, packet: Packet, body: PingRequest, source: Address) -> None:
        target = self._belief.roster.get(body.target)
        if target is None or body.target == self._belief.me.node_id or len(self._favours) >= MAX_FAVOURS:
            return
        number = self._post.number()
        until_s = self._clock.elapsed_s + self._options.probe_interval_s
        self._favours[number] = Favour(source, packet.sender.node_id, body.number, body.target, until_s)
        self._post.send(body.target, Ping(number))

    def on_ack(self, packet: Packet, body: Ack) -> None:
        sender, probe = packet.sender.node_id, self._probe
        if probe and (probe.number, probe.target) == (body.number, body.subject):
            if sender == probe.target and not probe.is_answered:
                self._measure(probe, packet.wall_ms)
            probe.is_answered = True
        favour = self._favours.get(body.number)
        if favour and sender == body.subject == favour.target:
            del self._favours[body.number]
            self._post.send_to(favour.address, favour.asker, Ack(favour.number, favour.target))

    def _begin(self) -> None:
        target = self._belief.others.turn()
        if target is None:
            self._probe = None
            return
        sent = Sending(self._clock.now_s, self._clock.wall_ms)
        ask_at_s = self._clock.elapsed_s + self._options.probe_timeout_s
        self._probe = Probe(self._post.number(), target, sent, ask_at_s)
        self._post.send(target, Ping(self._probe.number))

    def _measure(self, probe: Probe, peer_wall_ms: int) -> None:
        members = self._belief.roster.view
        if len(self._skews) > len(members):  # some were forgotten
            self._skews = {node_id: skew for node_id, skew in self._skews.items() if node_id in members}
        self._skews.setdefault(probe.target, Skew()).add(
            probe.sent, peer_wall_ms, self._clock.now_s, self._clock.wall_ms
        )

    def _drop_favours(self, elapsed_s: float) -> None:
        while self._favours:
            number, oldest = next(iter(self._favours.items()))
            if elapsed_s < oldest.until_s:
                return
            del self._favours[number]
