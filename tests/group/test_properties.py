"""Random lives of a group: whatever members do, the promises hold."""

from __future__ import annotations

from typing import Any

from group_stage import SETTINGS, Stage, reload, subscription
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.errors import ErrorCode
from headrace.group.commands import JoinAnswer, SyncAnswer

SESSION_MS = 10_000
REBALANCE_MS = 20_000
USUAL = (("range", subscription("t")),)
PROTOCOLS = st.sampled_from(
    [
        USUAL,
        USUAL,
        (("range", subscription("t", "u")),),
        (("range", subscription("u")), ("sticky", b"x")),
        (("sticky", b"y"), ("range", subscription("t"))),
    ]
)
INSTANCES = st.sampled_from([None, None, "a", "b"])
WHO = st.integers(0, 7)


class Life(RuleBasedStateMachine):
    """Clients with a memory of their own: the id and generation that they were last told."""

    @initialize(members=st.integers(0, 4))
    def begin(self, members: int) -> None:
        self.stage = Stage()
        self.joins: dict[int, str | None] = {}  # token -> instance
        self.syncs: dict[int, tuple[str, int]] = {}  # token -> (member, generation)
        self.known: list[tuple[str, str | None]] = []  # ids that were told to somebody
        self.generation_of: dict[str, int] = {}
        self.members_of: dict[int, frozenset[str]] = {}  # generation -> members that the leader was told
        self.sent: dict[int, dict[str, bytes]] = {}  # generation -> the leader's assignment
        self.committed: dict[str, int] = {}
        self.generation = 0
        self.durable_generation = 0
        self.serial = 0
        for number in range(members):
            self.come("ab"[number] if number < 2 else None, USUAL, True, False)
        self.wait(200)
        self.settle()

    def _someone(self, who: int) -> tuple[str, str | None]:
        return self.known[who % len(self.known)] if self.known else ("nobody", None)

    def _join(self, member: str, instance: str | None, protocols: Any, **fields: bool) -> None:
        token = self.stage.join(
            member,
            instance_id=instance,
            protocols=protocols,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            **fields,
        )
        self.joins[token] = instance
        self._listen()

    @rule(instance=INSTANCES, protocols=PROTOCOLS, must_know_id=st.booleans(), gives_up=st.booleans())
    def come(self, instance: str | None, protocols: Any, must_know_id: bool, gives_up: bool) -> None:
        before = list(self.known)
        self._join("", instance, protocols, must_know_id=must_know_id)
        if self.known != before and not gives_up:
            self._join(*self.known[-1], protocols)

    @rule(who=WHO, protocols=PROTOCOLS)
    def rejoin(self, who: int, protocols: Any) -> None:
        self._join(*self._someone(who), protocols)

    @rule(who=WHO)
    def sync(self, who: int) -> None:
        member, instance = self._someone(who)
        generation = self.generation_of.get(member, 0)
        assignments = {}
        if generation in self.members_of:
            self.serial += 1
            assignments = {m: f"{generation}/{m}/{self.serial}".encode() for m in self.members_of[generation]}
        token = self.stage.sync(member, generation, instance_id=instance, assignments=assignments)
        self.syncs[token] = (member, generation)
        self._listen()

    @rule(who=WHO)
    def heartbeat(self, who: int) -> None:
        member, instance = self._someone(who)
        self.stage.heartbeat(member, self.generation_of.get(member, 0), instance_id=instance)
        self._listen()

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.stage.leave(self._someone(who))
        self._listen()

    @rule(who=WHO, topic=st.sampled_from("tuv"))
    def commit(self, who: int, topic: str) -> None:
        member, instance = self._someone(who)
        self.serial += 1
        generation = self.generation_of.get(member, 0)
        said = self.stage.commit(
            self.serial, topic=topic, member_id=member, generation=generation, instance_id=instance
        )
        if said == "none":
            self.committed[topic] = self.serial

    @rule(ms=st.sampled_from([1, 50, 100, 200, 1_000, 4_000, 10_000]))
    def wait(self, ms: int) -> None:
        self.stage.wait(ms)
        self._listen()

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.joins.clear()
        self.syncs.clear()
        self.generation = self.durable_generation
        self.members_of = {g: m for g, m in self.members_of.items() if g <= self.generation}
        self.sent = {g: a for g, a in self.sent.items() if g <= self.generation}

    @rule(silent=st.sampled_from([None, None, 0, 1]))
    def settle(self, silent: int | None = None) -> None:
        """All known members rejoin and sync, as healthy clients do; perhaps all but one."""
        for member, instance in list(self.known):
            self._join(member, instance, USUAL)
        self.wait(200)
        for who in reversed(range(len(self.known))):
            if who != silent:
                self.sync(who)

    @rule()
    def everybody_is_alive(self) -> None:
        for who in range(len(self.known)):
            self.heartbeat(who)

    def _listen(self) -> None:
        for token in [t for t in self.joins if t in self.stage.answers]:
            instance = self.joins.pop(token)
            answer = self.stage.answers[token]
            assert isinstance(answer, JoinAnswer)
            if answer.member_id and answer.error in (ErrorCode.none, ErrorCode.member_id_required):
                if (answer.member_id, instance) not in self.known:
                    self.known.append((answer.member_id, instance))
                self.known = self.known[-8:]
            if answer.error is ErrorCode.none:
                assert answer.generation >= self.generation, "generations do not go back"
                self.generation = answer.generation
                self.generation_of[answer.member_id] = answer.generation
                if answer.members:
                    self.members_of[answer.generation] = frozenset(m.member_id for m in answer.members)
        for token in [t for t in self.syncs if t in self.stage.answers]:
            member, generation = self.syncs.pop(token)
            answer = self.stage.answers[token]
            assert isinstance(answer, SyncAnswer)
            if answer.error is ErrorCode.none and answer.assignment:
                owner_generation, owner, _ = answer.assignment.decode().split("/")
                assert int(owner_generation) == generation, "an assignment is of the generation that was asked for"
                self.durable_generation = max(self.durable_generation, generation)
                once = self.sent.setdefault(generation, {})
                assert once.setdefault(owner, answer.assignment) == answer.assignment, "one assignment per generation"
                static = dict(self.known).get(member) is not None
                assert owner == member or static, "nobody gets another member's assignment"

    @invariant()
    def offsets_do_not_go_back(self) -> None:
        if hasattr(self, "stage"):
            for topic, offset in self.committed.items():
                assert self.stage.fetch((topic, 0)) == f"{topic}-0@{offset}/3"

    @invariant()
    def the_log_and_a_snapshot_rebuild_the_state(self) -> None:
        if hasattr(self, "stage"):
            whole = sorted(self.stage.groups.snapshot())
            assert sorted(reload(self.stage.log, SETTINGS, self.stage.now).snapshot()) == whole
            assert sorted(reload(whole, SETTINGS, self.stage.now).snapshot()) == whole

    @invariant()
    def a_settled_group_survives_a_restart_as_it_is(self) -> None:
        if hasattr(self, "stage") and self.stage.state() in ("Stable", "Empty"):
            before, live = self.stage.describe(), self.stage.groups
            self.stage.groups = reload(self.stage.log, SETTINGS, self.stage.now)
            after, self.stage.groups = self.stage.describe(), live
            assert after == before or (after.state == "Dead" and not before.protocol_type)

    @invariant()
    def the_machine_wakes_in_time(self) -> None:
        if hasattr(self, "stage"):
            due = self.stage.groups.due()
            for group in self.stage.groups._groups.values():
                deadlines = [m.deadline_ms for m in group.roster] + list(group._pending.values())
                deadlines += [d for d in (group._join_deadline_ms, group._sync_deadline_ms) if d is not None]
                assert due is not None
                assert due <= min(deadlines, default=due)

    @invariant()
    def everybody_who_waits_is_known_to_wait(self) -> None:
        if hasattr(self, "stage"):
            waiting = {t for group in self.stage.groups._groups.values() for t in group.waiting}
            assert waiting == set(self.joins) | set(self.syncs)

    def teardown(self) -> None:
        """When all clients fall silent, everybody who waits is answered and the group becomes empty."""
        if not hasattr(self, "stage"):
            return
        self.stage.wait(NEW_MEMBER_WAIT_MS + 4 * (SESSION_MS + REBALANCE_MS))
        self._listen()
        assert not self.joins
        assert not self.syncs
        assert self.stage.state() in ("Empty", "Dead")


NEW_MEMBER_WAIT_MS = 300_000
TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
