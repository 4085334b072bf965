"""First contact: seeds, of which only addresses are known, and the dead, who may be back.

Rules:
- A node that joins asks all its seeds, again and again, and exchanges its state with the first that answers. It has
  joined when one exchange is complete. Anybody else who turns up in the meantime will do as well.
- Later on, a few of the dead, and of the seeds behind which no living node is known, are asked in turn in every
  `rejoin_interval_s`: so the sides of a cut find each other again, and a node that is a seed is found when it is back.
- Whoever answers such a question gets a full exchange.
- There are `MAX_SEEDS` at most: those that were named last. One that answers is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.swim.belief import Belief, Way
from headrace.swim.clock import Clock
from headrace.swim.exchange import Exchange
from headrace.swim.member import ANYONE, Address
from headrace.swim.messages import Ack, Packet, Ping
from headrace.swim.options import Dice, SwimOptions
from headrace.swim.post import Post

MAX_SEEDS: Final = 64
LOST_AT_A_TIME: Final = 3


class Call(NamedTuple):
    address: Address
    until_s: float


class Contacts:
    def __init__(
        self, belief: Belief, post: Post, exchange: Exchange, options: SwimOptions, clock: Clock, dice: Dice
    ) -> None:
        self.is_joining = False
        self._belief = belief
        self._post = post
        self._exchange = exchange
        self._options = options
        self._clock = clock
        self._turn = dice.randrange(2**16)  # not all call the same ones
        self._seeds: dict[Address, int | None] = {}  # and who was found there
        self._calls: dict[int, Call] = {}  # by number, oldest first
        self._completed = 0
        self._next_join_s = 0.0
        self._next_rejoin_s = options.rejoin_interval_s * (500 + dice.randrange(500)) / 1000

    def join(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            if address != self._belief.me.address:
                self._seeds[address] = self._seeds.pop(address, None)  # to the end of the order
        for forgotten in list(self._seeds)[:-MAX_SEEDS]:
            del self._seeds[forgotten]
        if self._seeds:
            self.is_joining = True
            self._completed = self._exchange.completed
            self._next_join_s = self._clock.elapsed_s

    def tick(self) -> None:
        elapsed_s = self._clock.elapsed_s
        while self._calls and next(iter(self._calls.values())).until_s <= elapsed_s:
            del self._calls[next(iter(self._calls))]
        if self.is_joining and self._exchange.completed > self._completed:
            self.is_joining = False
        if self.is_joining and elapsed_s >= self._next_join_s:
            self._next_join_s = elapsed_s + self._options.join_interval_s
            for seed in self._seeds:
                self._call(seed, ANYONE)
            self._exchange_with_anybody()
        if elapsed_s >= self._next_rejoin_s:
            self._next_rejoin_s = elapsed_s + self._options.rejoin_interval_s
            self._call_the_lost()

    def on_ack(self, packet: Packet, body: Ack, source: Address) -> None:
        call = self._calls.pop(body.number, None)
        if call is None:
            return
        sender = packet.sender.node_id
        if call.address in self._seeds:
            self._seeds[call.address] = sender
        self._exchange.begin(source, sender, Way.JOIN if self.is_joining else Way.EXCHANGE)

    def _exchange_with_anybody(self) -> None:
        for node_id in self._belief.others.pick(1):
            self._exchange.begin(self._belief.roster.view[node_id].address, node_id, Way.JOIN)

    def _call_the_lost(self) -> None:
        lost = {member.address: member.node_id for member in self._belief.dead}
        if not self.is_joining:
            for seed in self._seeds:
                if not self._is_found(seed):
                    lost.setdefault(seed, ANYONE)
        calls = list(lost.items())
        for _ in range(min(LOST_AT_A_TIME, len(calls))):
            self._turn += 1
            self._call(*calls[self._turn % len(calls)])

    def _is_found(self, seed: Address) -> bool:
        node_id = self._seeds[seed]
        member = None if node_id is None else self._belief.roster.get(node_id)
        return member is not None and member.is_living

    def _call(self, address: Address, node_id: int) -> None:
        number = self._post.number()
        self._calls[number] = Call(address, self._clock.elapsed_s + self._options.join_interval_s)
        self._post.send_to(address, node_id, Ping(number), self._belief.roster.get(node_id))
