"""What one node believes of all nodes, and how it changes its mind.

Rules:
- A record that supersedes the one that is held takes its place and becomes news. All others change nothing.
- A suspect has `suspicion_s` to refute, counted by each node from when it heard; then it is dead. Hearing the same
  suspicion again does not begin it anew.
- A node that hears of itself what supersedes its own record, in whatever way, refutes: its incarnation goes above the
  one it heard of. That is also how a node that has restarted gets above the incarnations of its earlier lives.
- A death that comes from a full exchange, of a node that is held to be living, is only a suspicion here: two sides of a
  healed cut hold each other to be dead, and each deserves the time to refute.
- The death of somebody unknown is not worth keeping; else the dead would be passed on for ever. The gone are forgotten
  after `forget_s`, or when there is no room for the living.
- What a node learns while it joins is no news: those who told it know.
- A node that has left does not refute: it stays away under whatever incarnation it is known by.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from headrace.swim.clock import Clock
from headrace.swim.member import MAX_INCARNATION, MAX_RECORD_BYTES, Member, State, record_bytes
from headrace.swim.news import NewsQueue
from headrace.swim.options import Dice, SwimOptions, suspicion_s
from headrace.swim.output import (
    Event,
    IdentityContested,
    MemberDied,
    MemberJoined,
    MemberLeft,
    MemberSuspected,
    MemberUpdated,
)
from headrace.swim.roster import Roster
from headrace.swim.rota import Rota


class Way(Enum):
    """How a record has come here."""

    GOSSIP = "gossip"  # from the node itself, or passed on as news
    EXCHANGE = "exchange"
    JOIN = "join"  # by the exchange that makes this node a member


class Belief:
    def __init__(self, me: Member, options: SwimOptions, dice: Dice, clock: Clock) -> None:
        if me.state is not State.ALIVE:
            raise ValueError("a node begins alive")
        if len(record_bytes(me)) > MAX_RECORD_BYTES:
            raise ValueError(f"host, rack and meta take more than {MAX_RECORD_BYTES} bytes")
        self.me = me
        self.roster = Roster(options.max_members)
        self.roster.put(me)
        self.others = Rota(dice)
        self.news = NewsQueue()
        self.events: list[Event] = []
        self._options = options
        self._clock = clock
        self._suspected_until: dict[int, float] = {}
        self._gone_since: dict[int, float] = {}  # in the order of their going
        self._contests = 0

    @property
    def dead(self) -> list[Member]:
        """Those who may come back where they were."""
        found = (self.roster.view[node_id] for node_id in self._gone_since)
        return [member for member in found if member.state is State.DEAD]

    def hear(self, record: Member, way: Way = Way.GOSSIP) -> None:
        if record.node_id == self.me.node_id:
            self._hear_of_me(record)
            return
        known = self.roster.get(record.node_id)
        if known is None:
            if not record.is_living or (self.roster.is_full and not self._forget_the_oldest()):
                return
        else:
            if not record.supersedes(known):
                return
            if way is not Way.GOSSIP and record.state is State.DEAD and known.is_living:
                record = record.become(State.SUSPECT)
                if not record.supersedes(known):
                    return  # suspected already: its time runs
        self._accept(record, known)
        if way is not Way.JOIN:
            self.news.put(record)

    def suspect(self, node_id: int) -> None:
        """A probe has failed."""
        known = self.roster.get(node_id)
        if known is not None and known.state is State.ALIVE:
            self.hear(known.become(State.SUSPECT))

    def tick(self) -> None:
        """Suspects whose time is up are dead; the gone are forgotten."""
        elapsed_s = self._clock.elapsed_s
        if self._suspected_until:
            for node_id in [node for node, until in self._suspected_until.items() if elapsed_s >= until]:
                self.hear(self.roster.view[node_id].become(State.DEAD))
        while self._gone_since:
            since = next(iter(self._gone_since.values()))
            if elapsed_s < since + self._options.forget_s:
                return
            self._forget_the_oldest()

    def leave(self) -> None:
        self._change_me(self.me.become(State.LEFT))

    def update(self, rack: str, meta: bytes) -> None:
        """This node describes itself anew. That needs a new incarnation: only so do the others take it."""
        changed = msgspec.structs.replace(self.me, rack=rack, meta=meta, incarnation=self.me.incarnation + 1)
        if len(record_bytes(changed)) > MAX_RECORD_BYTES:
            raise ValueError(f"host, rack and meta take more than {MAX_RECORD_BYTES} bytes")
        self._change_me(changed)

    def correction(self, claimed: Member) -> Member | None:
        """What a node should hear of itself, given what it says of itself."""
        known = self.roster.get(claimed.node_id)
        return known if known is not None and known.supersedes(claimed) else None

    def _hear_of_me(self, record: Member) -> None:
        if not record.supersedes(self.me) or record.incarnation >= MAX_INCARNATION:
            return
        if record.address != self.me.address and record.state is State.ALIVE:
            # Once, it may be an earlier life of this node elsewhere. That one does not answer back.
            self._contests += 1
            if self._contests > 1:
                self.events.append(IdentityContested(record))
        self._change_me(msgspec.structs.replace(self.me, incarnation=record.incarnation + 1))

    def _change_me(self, me: Member) -> None:
        self.me = me
        self.roster.put(me)
        self.news.put(me)

    def _accept(self, record: Member, known: Member | None) -> None:
        node_id = record.node_id
        self.roster.put(record)
        self._suspected_until.pop(node_id, None)
        if record.state is State.SUSPECT:
            self._suspected_until[node_id] = self._clock.elapsed_s + suspicion_s(self._options, self.roster.living)
        was_living = known is not None and known.is_living
        if record.is_living and not was_living:
            self._gone_since.pop(node_id, None)
            self.others.add(node_id)
        elif not record.is_living:
            self._gone_since.pop(node_id, None)  # to the end of the order
            self._gone_since[node_id] = self._clock.elapsed_s
            if was_living:
                self.others.remove(node_id)
        self._tell(record, known)

    def _forget_the_oldest(self) -> bool:
        """Of the gone; False if nobody is gone."""
        if not self._gone_since:
            return False
        node_id = next(iter(self._gone_since))
        del self._gone_since[node_id]
        self.roster.remove(node_id)
        self.news.drop(node_id)
        return True

    def _tell(self, record: Member, known: Member | None) -> None:
        before = None if known is None else known.state
        if record.is_living:
            if known is None or not known.is_living:
                self.events.append(MemberJoined(record))
            elif record.details != known.details or record.state < known.state:
                self.events.append(MemberUpdated(record))
            if record.state is State.SUSPECT and before is not State.SUSPECT:
                self.events.append(MemberSuspected(record))
        elif record.state is not before:
            self.events.append(MemberDied(record) if record.state is State.DEAD else MemberLeft(record))
