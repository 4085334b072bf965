"""First contact: seeds, of which only addresses are known, and the dead, who may be back.

Rules:
- A node that joins asks all its seeds, again and again, and exchanges its state with the first that answers. It has
  joined when one exchange is complete. Anybody else who turns up in the meantime will do as well.
- Later on, one of the dead, or one seed behind which no living node is known, is asked in every `rejoin_interval_s`: so
  the sides of a cut find each other again, and a node whose address is a seed is found wherever it went.
- Whoever answers such a question gets a full exchange.
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
        self._dice = dice
        self._seeds: dict[Address, int | None] = {}  # and who was found there
        self._calls: dict[int, Call] = {}  # by number, oldest first
        self._completed = 0
        self._next_join_s = 0.0
        self._next_rejoin_s = options.rejoin_interval_s * (500 + dice.randrange(500)) / 1000

    def join(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            if address != self._belief.me.address:
                self._seeds.setdefault(address, None)
        if len(self._seeds) > MAX_SEEDS:
            raise ValueError(f"more than {MAX_SEEDS} seeds")
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
            self._call_one_of_the_lost()

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

    def _call_one_of_the_lost(self) -> None:
        dead = self._belief.dead
        seeds = [] if self.is_joining else [seed for seed in self._seeds if not self._is_found(seed)]
        if not dead and not seeds:
            return
        chosen = self._dice.randrange(len(dead) + len(seeds))
        if chosen < len(dead):
            self._call(dead[chosen].address, dead[chosen].node_id)
        else:
            self._call(seeds[chosen - len(dead)], ANYONE)

    def _is_found(self, seed: Address) -> bool:
        node_id = self._seeds[seed]
        member = None if node_id is None else self._belief.roster.get(node_id)
        return member is not None and member.is_living

    def _call(self, address: Address, node_id: int) -> None:
        number = self._post.number()
        self._calls[number] = Call(address, self._clock.elapsed_s + self._options.join_interval_s)
        self._post.send_to(address, node_id, Ping(number), self._belief.roster.get(node_id))
