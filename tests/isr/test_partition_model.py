"""Nothing that was acknowledged is lost while the rules hold; and where one rule is left out, it is noticed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from partition_model import NODES, Broken, Lost, Partition, run

nodes = st.sampled_from(NODES)
numbers = st.integers(0, 8)


class Life(RuleBasedStateMachine):
    """The model, with Hypothesis for its dice."""

    partition: Partition

    @initialize(synced=st.booleans(), min_isr=st.integers(0, 3))
    def begin(self, synced: bool, min_isr: int) -> None:
        self.partition = Partition(synced=synced, min_isr=min_isr)

    @rule(node=nodes, fetchers=st.lists(nodes, max_size=3))
    def produce(self, node: int, fetchers: list[int]) -> None:
        self.partition.produce(node)
        for fetcher in fetchers:
            self.partition.fetch(fetcher)

    @rule(node=nodes)
    def fetch(self, node: int) -> None:
        self.partition.fetch(node)

    @rule(number=numbers, lost=st.booleans())
    def deliver_fetch(self, number: int, lost: bool) -> None:
        self.partition.deliver_fetch(number, lost)

    @rule(node=nodes)
    def fetch_and_deliver(self, node: int) -> None:
        self.partition.fetch(node)
        self.partition.deliver_fetch(len(self.partition.fetches) - 1, False)

    @rule(node=nodes)
    def sync(self, node: int) -> None:
        self.partition.sync(node)

    @rule(node=nodes, everything=st.booleans())
    def learn(self, node: int, everything: bool) -> None:
        self.partition.learn(node, everything)

    @rule(node=nodes, shrink=st.booleans())
    def propose(self, node: int, shrink: bool) -> None:
        self.partition.tick()
        self.partition.propose(node, shrink)

    @rule(number=numbers)
    def deliver_proposal(self, number: int) -> None:
        self.partition.deliver_proposal(number)

    @rule(number=numbers)
    def deliver_refusal(self, number: int) -> None:
        self.partition.deliver_refusal(number)

    @rule(node=nodes, fault=st.sampled_from(["fence", "crash", "stop", "lose_power"]))
    def fail(self, node: int, fault: str) -> None:
        getattr(self.partition, fault)(node)

    @rule(node=nodes)
    def start(self, node: int) -> None:
        self.partition.start(node)

    @rule()
    def prefer(self) -> None:
        self.partition.prefer()

    @rule(replicas=st.lists(nodes, min_size=1, max_size=3, unique=True))
    def reassign(self, replicas: list[int]) -> None:
        self.partition.reassign(tuple(replicas))

    @rule(cancels=st.booleans())
    def end_reassignment(self, cancels: bool) -> None:
        self.partition.cancel_reassignment() if cancels else self.partition.step_reassignment()

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "partition"):
            self.partition.check()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("min_isr", [0, 1, 2, 3])
@pytest.mark.parametrize("synced", [False, True])
def test_nothing_acknowledged_is_lost_in_many_lives(synced: bool, min_isr: int) -> None:
    acknowledged = changes = elected = 0
    for seed in range(150 if min_isr == 0 else 100):
        partition = run(seed, 800, synced=synced, min_isr=min_isr)
        acknowledged += len(partition.acknowledged)
        changes += len(partition.history)
        elected += sum(now.leader in was.elr for was, now in pairwise(partition.history))
    assert acknowledged > (1000 if min_isr < 2 else 200) and changes > 1000  # these lives were not empty
    assert elected > 20 or not min_isr


@pytest.mark.parametrize(
    ("broken", "synced"),
    [
        (Broken.HIGH_WATERMARK_OF_THE_LEADER_ALONE, False),
        (Broken.HIGH_WATERMARK_WITHOUT_THE_PROPOSED, False),
        (Broken.UNCLEAN_ELECTION, False),
        (Broken.NO_EPOCH_CHECK, False),
        (Broken.NO_BROKER_EPOCH_CHECK, False),
        (Broken.LOST_BYTES_ARE_NOT_TOLD, False),
        (Broken.A_RESTART_BEGINS_NO_EPOCH, True),
        (Broken.JOINS_BELOW_THE_HIGH_WATERMARK, False),
        (Broken.A_NODE_ACTS_ON_OLD_NEWS, True),
        (Broken.HIGH_WATERMARK_WITH_TOO_FEW_IN_SYNC, True),
    ],
)
def test_a_rule_that_is_left_out_is_noticed(broken: Broken, synced: bool) -> None:
    min_isr = 2 if broken is Broken.HIGH_WATERMARK_WITH_TOO_FEW_IN_SYNC else 0
    for seed in range(400):
        try:
            run(seed, 800, synced=synced, broken=broken, min_isr=min_isr)
        except Lost:
            return
    pytest.fail(f"{broken.name} does no harm")


def removed_and_added_again(partition: Partition) -> None:
    """Node 2 sends a Fetch, is removed and added again; the Fetch comes late; then node 2 hears of its removal."""
    for _ in range(2):
        partition.produce(0)
        for node in (1, 2):
            partition.fetch(node)
            partition.deliver_fetch(0, False)
    partition.fetch(2)  # travels
    partition.reassign((0, 1))
    partition.step_reassignment()
    partition.reassign((0, 1, 2))
    partition.learn(0, False)
    partition.learn(0, False)
    partition.learn(0, False)
    partition.learn(1, True)
    partition.fetch(1)
    partition.deliver_fetch(1, False)
    partition.deliver_fetch(0, False)  # arrives
    partition.propose(0, shrink=False)
    partition.deliver_proposal(0)
    for _ in range(3):
        partition.learn(2, False)
    partition.check()


def test_a_late_fetch_of_a_replica_that_was_removed_is_not_believed() -> None:
    partition = Partition()
    removed_and_added_again(partition)
    assert partition.acknowledged and 2 not in partition.state.isr
    with pytest.raises(Lost):
        removed_and_added_again(Partition(broken=Broken.A_DROPPED_REPLICA_ENDS_NO_EPOCH))
