"""Full exchange of state between two nodes, page by page (push and pull).

Rules:
- A page is all that the asker knows in a range of ids. The other takes it in, and answers with what it knows better in
  that range, or as much of the range as fits. The asker goes on where the answer ends. One packet answers one packet: a
  node sends no more of them than it gets.
- Equal digests end an exchange after its first page.
- A page that gets no answer is asked for a few times; then the exchange is given up. What was learned stays learned.
- One exchange at a time. One with somebody by chance in every `sync_interval_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.swim.belief import Belief, Way
from headrace.swim.clock import Clock
from headrace.swim.member import Address, Member, record_bytes
from headrace.swim.messages import END, Packet, Sync, SyncReply
from headrace.swim.options import Dice, SwimOptions
from headrace.swim.post import Post
from headrace.swim.roster import Roster

TRIES: Final = 3


def page(roster: Roster, lower: int, room_bytes: int) -> tuple[tuple[Member, ...], int]:
    """What is known from `lower` on, as far as it fits, and where it ends."""
    return _fitting(list(roster.between(lower, END)), END, room_bytes)


def better(roster: Roster, request: Sync, room_bytes: int) -> tuple[tuple[Member, ...], int]:
    """What is known better than a page says, as far as it fits, and where it ends."""
    told = {member.node_id: member for member in request.members}
    found = []
    for member in roster.between(request.lower, request.upper):
        theirs = told.get(member.node_id)
        if theirs is None or member.supersedes(theirs):
            found.append(member)
    return _fitting(found, request.upper, room_bytes)


def _fitting(members: list[Member], upper: int, room_bytes: int) -> tuple[tuple[Member, ...], int]:
    for place, member in enumerate(members):
        room_bytes -= len(record_bytes(member))
        if room_bytes < 0:
            return tuple(members[:place]), member.node_id
    return tuple(members), upper


@dataclass(slots=True)
class Turn:
    """The page that is on its way."""

    address: Address
    node_id: int
    way: Way
    lower: int
    number: int
    tries: int
    until_s: float


class Exchange:
    def __init__(self, belief: Belief, post: Post, options: SwimOptions, clock: Clock, dice: Dice) -> None:
        self.completed = 0
        self._belief = belief
        self._post = post
        self._options = options
        self._clock = clock
        self._turn: Turn | None = None
        self._next_s = options.sync_interval_s * (500 + dice.randrange(500)) / 1000  # not all at the same time

    @property
    def is_running(self) -> bool:
        return self._turn is not None

    def begin(self, address: Address, node_id: int, way: Way = Way.EXCHANGE) -> None:
        if self._turn is None:
            self._ask(Turn(address, node_id, way, 0, 0, 0, 0.0))

    def tick(self) -> None:
        turn = self._turn
        if turn and self._clock.elapsed_s >= turn.until_s:
            self._turn = None
            if turn.tries < TRIES:
                self._ask(turn)
        if self._clock.elapsed_s >= self._next_s:
            self._next_s = self._clock.elapsed_s + self._options.sync_interval_s
            for node_id in self._belief.others.pick(1):
                self.begin(self._belief.roster.view[node_id].address, node_id)

    def on_sync(self, packet: Packet, body: Sync, source: Address) -> None:
        roster = self._belief.roster
        for member in body.members:
            self._belief.hear(member, Way.EXCHANGE)
        reply = SyncReply(body.number, END, ())
        if not body.digest or body.digest != roster.digest:
            reply.members, reply.upper = better(roster, body, self._post.room_bytes(reply))
        self._post.send_page(source, packet.sender.node_id, reply)

    def on_reply(self, packet: Packet, body: SyncReply) -> None:
        turn = self._turn
        if turn is None or (body.number, packet.sender.node_id) != (turn.number, turn.node_id):
            return
        for member in body.members:
            self._belief.hear(member, turn.way)
        self._turn = None
        if body.upper == END:
            self.completed += 1
        elif body.upper > turn.lower:
            turn.lower, turn.tries = body.upper, 0
            self._ask(turn)

    def _ask(self, turn: Turn) -> None:
        roster = self._belief.roster
        turn.number = self._post.number()
        turn.tries += 1
        turn.until_s = self._clock.elapsed_s + self._options.probe_interval_s
        digest = 0 if turn.lower else roster.digest
        request = Sync(turn.number, turn.lower, END, (), digest)
        request.members, request.upper = page(roster, turn.lower, self._post.room_bytes(request))
        self._turn = turn
        self._post.send_page(turn.address, turn.node_id, request)
