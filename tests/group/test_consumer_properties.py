"""Random lives of groups of the new protocol: clients that lose answers, repeat requests, die and come back.

A client here has a memory of its own: the epoch that it was told and the partitions that it really reads. The promises:
- what a member of the group really reads is what the broker has booked to it, and no partition is booked twice;
- epochs only grow; the log rebuilds the state at every moment;
- when everybody is heard again, everybody reads its target, and together they read everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consumer_stage import PATIENT, ConsumerStage
from group_stage import reload
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from test_migration import owning

from headrace.group.commands import ConsumerHeartbeat, HeartbeatAnswer, JoinAnswer, SyncAnswer
from headrace.group.consumer import ConsumerGroup
from headrace.group.consumer_records import Progress
from headrace.group.embedded import assignment_of
from headrace.group.topics import Partitions, flat, grouped

SETTINGS = replace(PATIENT, consumer_migration="upgrade")
REBALANCE_MS = 20_000
TOPICS = st.sampled_from([("t",), ("t",), ("t", "u"), ("u",), ()])
PATTERNS = st.sampled_from([None, None, None, "t|v", "u.*"])
WHO = st.integers(0, 9)


@dataclass
class Client:
    """A consumer. `owned`: what it reads now. `must_say_all`: an answer was lost, so it repeats everything."""

    member_id: str
    topics: tuple[str, ...]
    pattern: str | None
    instance_id: str | None
    epoch: int = 0
    owned: Partitions = frozenset()
    told: Partitions | None = None
    reported: Partitions | None = None
    must_say_all: bool = True

    def request(self, token: int) -> ConsumerHeartbeat:
        everything = self.epoch == 0 or self.must_say_all
        says_owned = everything or self.owned != self.reported
        return ConsumerHeartbeat(
            token=token,
            group="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if everything else None,
            topics=self.topics if everything else None,
            pattern=(self.pattern or "") if everything else None,
            owned=grouped(self.owned) if says_owned else None,
        )

    def hear(self, request: ConsumerHeartbeat, answer: HeartbeatAnswer) -> None:
        if answer.error:
            self.abandon()
            return
        self.epoch = answer.member_epoch
        self.must_say_all = False
        if request.owned is not None:
            self.reported = flat(request.owned)
        if answer.assignment is not None:
            self.told = flat(answer.assignment)
            if self.told >= self.owned:
                self.owned = self.told  # nothing to give up: it reads on at once

    def give_up(self) -> None:
        if self.told is not None:
            self.owned &= self.told

    def abandon(self) -> None:
        self.epoch, self.owned, self.told, self.reported, self.must_say_all = 0, frozenset(), None, None, True


@dataclass
class Guest:
    """A consumer of the classic protocol; eager ones stop reading before they join."""

    eager: bool
    topics: tuple[str, ...]
    member_id: str = ""
    generation: int = -1
    owned: Partitions = frozenset()
    must_join: bool = True


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(SETTINGS, t=4, u=2)
        self.clients: list[Client] = []
        self.guests: list[Guest] = []
        self.gone = 0
        self.group_epoch = 0
        self.epochs: dict[str, int] = {}

    @initialize(members=st.integers(1, 4))
    def begin(self, members: int) -> None:
        for _ in range(members):
            self.come(("t",), None, None)

    # -- what clients do

    def _client(self, who: int) -> Client | None:
        return self.clients[who % len(self.clients)] if self.clients else None

    def _send(self, client: Client, *, lost_answer: bool = False, twice: bool = False) -> None:
        for repeat in range(2 if twice else 1):
            request = client.request(next(self.stage._tokens))
            answer = self.stage.answer(request)
            assert isinstance(answer, HeartbeatAnswer)
            if repeat == 0 and twice:
                client.must_say_all = True  # the first answer came too late
                continue
            if lost_answer:
                client.must_say_all = True
            else:
                client.hear(request, answer)

    @rule(topics=TOPICS, pattern=PATTERNS, instance=st.sampled_from([None, None, "i", "j"]))
    def come(self, topics: tuple[str, ...], pattern: str | None, instance: str | None) -> None:
        if len(self.clients) < 6:
            self.gone += 1
            self.clients.append(Client(f"c{self.gone}", topics, pattern, instance))
            self._send(self.clients[-1])

    @rule(who=WHO, lost=st.booleans(), twice=st.booleans())
    def beat(self, who: int, lost: bool, twice: bool) -> None:
        if (client := self._client(who)) is not None:
            self._send(client, lost_answer=lost, twice=twice)

    @rule(who=WHO)
    def obey(self, who: int) -> None:
        if (client := self._client(who)) is not None:
            client.give_up()

    @rule()
    def everybody(self) -> None:
        for client in self.clients:
            client.give_up()
            self._send(client)

    @rule(who=WHO, topics=TOPICS, pattern=PATTERNS)
    def subscribe(self, who: int, topics: tuple[str, ...], pattern: str | None) -> None:
        if (client := self._client(who)) is not None:
            client.topics, client.pattern, client.must_say_all = topics, pattern, True
            self._send(client)

    @rule(who=WHO)
    def die(self, who: int) -> None:
        if (client := self._client(who)) is not None:
            self.clients.remove(client)

    @rule(who=WHO, comes_back=st.booleans())
    def leave(self, who: int, comes_back: bool) -> None:
        client = self._client(who)
        if client is None or client.epoch <= 0:
            return
        self.clients.remove(client)
        for_now = client.instance_id is not None and comes_back
        client.abandon()
        self.stage.beat(client.member_id, -2 if for_now else -1, instance_id=client.instance_id)
        if for_now:
            self.gone += 1
            self.clients.append(Client(f"c{self.gone}", client.topics, client.pattern, client.instance_id))

    @rule(who=WHO)
    def restart_client(self, who: int) -> None:
        """It comes back under the same id and has forgotten everything."""
        if (client := self._client(who)) is not None:
            client.abandon()
            self._send(client)

    # -- classic members

    def _is_inhabited(self) -> bool:
        group = self.stage.groups._groups.get("g")
        return isinstance(group, ConsumerGroup) and bool(group.members)

    @rule(eager=st.booleans(), topics=st.sampled_from([("t",), ("t", "u")]))
    def guest_comes(self, eager: bool, topics: tuple[str, ...]) -> None:
        if len(self.guests) < 3 and self._is_inhabited():
            self.guests.append(Guest(eager, topics))
            self._guest_step(self.guests[-1])

    @rule(who=WHO)
    def guest_beats(self, who: int) -> None:
        if self.guests and self._is_inhabited():
            self._guest_step(self.guests[who % len(self.guests)])

    @rule(who=WHO)
    def guest_dies(self, who: int) -> None:
        if self.guests:
            self.guests.pop(who % len(self.guests))

    def _guest_step(self, guest: Guest) -> None:
        if not guest.must_join:
            heard = self.stage.heartbeat(guest.member_id, guest.generation)
            guest.must_join = heard != "none"
            if heard not in ("none", "rebalance_in_progress"):
                guest.owned, guest.member_id = frozenset(), ""
            return
        if guest.eager:
            guest.owned = frozenset()
        metadata = owning(self.stage.topics.text(grouped(guest.owned)).replace("gone:", "t:9"), *guest.topics)
        asked = {"protocols": (("range", metadata),), "rebalance_timeout_ms": REBALANCE_MS, "must_know_id": False}
        joined = self.stage.answers[self.stage.join(guest.member_id, **asked)]
        assert isinstance(joined, JoinAnswer)
        assert not joined.error, joined
        guest.member_id, guest.generation = joined.member_id, joined.generation
        synced = self.stage.answers[self.stage.sync(guest.member_id, guest.generation)]
        assert isinstance(synced, SyncAnswer)
        if synced.error:
            return
        named = assignment_of(synced.assignment)
        assert named is not None
        topics = self.stage.topics.topics
        told = flat((topics[name].topic_id, indexes) for name, indexes in named)
        guest.must_join = bool(guest.owned - told)  # what it gave up it says in its next join
        guest.owned = told

    # -- the world

    @rule(ms=st.sampled_from([100, 5_000, 15_000, 50_000]))
    def wait(self, ms: int) -> None:
        self.stage.wait(ms)

    @rule(name=st.sampled_from(["t", "u", "v", "u1"]), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        topic = self.stage.topics.topics.get(name)
        if topic is None or topic.partitions < 8:
            self.stage.topics.put(name, more + (0 if topic is None else topic.partitions))
            self.stage.show()

    @rule(name=st.sampled_from(["u", "v"]))
    def drop(self, name: str) -> None:
        self.stage.topics.topics.pop(name, None)
        self.stage.show()

    @rule()
    def restart(self) -> None:
        self.stage.restart()

    # -- what always holds

    def _readers(self) -> list[Client | Guest]:
        """Clients that are members, as the broker sees it."""
        members = self.stage.group().members if self._is_inhabited() else {}
        return [each for each in (*self.clients, *self.guests) if each.member_id in members]

    @invariant()
    def what_is_read_is_booked_and_booked_once(self) -> None:
        if not self._is_inhabited():
            return
        group = self.stage.group()
        booked = [place for stand in group.stands.values() for place in stand.held]
        assert len(booked) == len(set(booked)), "a partition is booked to two members"
        assert all(group.holder(place) == who for who, stand in group.stands.items() for place in stand.held)
        read = [place for each in self._readers() for place in each.owned]
        assert len(read) == len(set(read)), "a partition is read by two members"
        for each in self._readers():
            assert each.owned <= group.stands[each.member_id].held

    @invariant()
    def epochs_only_grow(self) -> None:
        group = self.stage.groups._groups.get("g")
        if not isinstance(group, ConsumerGroup):
            return
        assert group.epochs.group_epoch >= self.group_epoch
        assert group.epochs.assignment_epoch <= group.epochs.group_epoch
        self.group_epoch = group.epochs.group_epoch
        for member_id, stand in group.stands.items():
            assert stand.epoch == -2 or stand.epoch >= self.epochs.get(member_id, 0)
            assert stand.epoch <= group.epochs.group_epoch
            assert (stand.progress is Progress.UNREVOKED) == bool(stand.revoking)
            self.epochs[member_id] = max(stand.epoch, 0)

    @invariant()
    def the_log_rebuilds_the_state(self) -> None:
        rebuilt = reload(self.stage.log, SETTINGS, self.stage.now)
        assert dict(rebuilt.snapshot()) == dict(self.stage.groups.snapshot())
        again = reload([*self.stage.log, *self.stage.groups.snapshot()], SETTINGS, self.stage.now)
        assert dict(again.snapshot()) == dict(rebuilt.snapshot())

    def teardown(self) -> None:
        """Everybody is heard: everybody ends with its target, and nothing is left over."""
        for _ in range(30):
            self.stage.wait(4_000)
            for client in self.clients:
                client.give_up()
                self._send(client)
                if client.epoch == 0:
                    client.instance_id = None  # somebody else has its place for good
            for guest in self.guests if self._is_inhabited() else ():
                self._guest_step(guest)
        if not self._is_inhabited() or not self.clients:
            return
        group = self.stage.group()
        assert group.state == "Stable"
        assert group.members.keys() == {each.member_id for each in (*self.clients, *self.guests)}
        for each in (*self.clients, *self.guests):
            assert each.owned == group.targets[each.member_id]
        wanted = {
            (topic.topic_id, index)
            for name in group.subscribed
            if (topic := self.stage.topics.topics.get(name)) is not None
            for index in range(topic.partitions)
        }
        assert {place for each in self._readers() for place in each.owned} == wanted
        self.what_is_read_is_booked_and_booked_once()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
