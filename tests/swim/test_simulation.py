"""Seeded histories of whole clusters, and proof that they see: machines that are broken on purpose are caught.

HEADRACE_SWIM_SEEDS=2000 runs that many; HEADRACE_SWIM_SEED=17 replays one history and prints it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from gossip_network import OPTIONS, Network, detection_bound_s, form, simulate

from headrace.swim import belief
from headrace.swim.belief import Belief, Way
from headrace.swim.contacts import Contacts
from headrace.swim.detector import Detector
from headrace.swim.member import Member
from headrace.swim.news import NewsQueue
from headrace.swim.options import suspicion_s

ONE = os.environ.get("HEADRACE_SWIM_SEED")
SEEDS = int(os.environ.get("HEADRACE_SWIM_SEEDS", "20"))
PORTION = 5


def check(seeds: Iterable[int], trace: bool = False) -> None:
    for seed in seeds:
        try:
            simulate(seed, trace=trace)
        except Exception as error:
            replay = f"HEADRACE_SWIM_SEED={seed} python -m pytest -s {os.path.relpath(__file__)} -k replayed"
            raise AssertionError(f"seed {seed}: {error!r}\nreplay: {replay}") from error


@pytest.mark.skipif(ONE is not None, reason="one seed is replayed")
@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_every_healed_cluster_agrees_on_who_lives(first: int) -> None:
    check(range(first, min(first + PORTION, SEEDS)))


@pytest.mark.skipif(ONE is None, reason="HEADRACE_SWIM_SEED names the seed to replay")
def test_a_seed_is_replayed() -> None:
    check([int(ONE or 0)], trace=True)


def test_the_same_seed_is_the_same_history() -> None:
    one, two = simulate(1), simulate(1)
    assert (one.now_s, one.packets, one.bytes, one.deaths) == (two.now_s, two.packets, two.bytes, two.deaths)


def formed(size: int, loss: float = 0.0, seed: int = 7) -> Network:
    network = Network(seed, size)
    form(network)
    assert network.run(30, until=network.has_converged)
    network.loss = loss
    return network


@pytest.mark.parametrize(("size", "loss"), [(3, 0.0), (3, 0.05), (8, 0.05), (20, 0.0), (30, 0.05)])
def test_a_dead_node_is_reported_by_all_within_the_bound(size: int, loss: float) -> None:
    network = formed(size, loss)
    victim, died_s = network.nodes[size // 2], network.now_s
    network.crash(victim)
    network.run(detection_bound_s(OPTIONS, size))
    reports = {who: when - died_s for when, who, whom in network.deaths if whom == victim.node_id}
    assert reports.keys() == {node.node_id for node in network.up()}
    # In most clusters it takes far less: somebody's turn to probe comes soon.
    assert max(reports.values()) < 4 * OPTIONS.probe_interval_s + suspicion_s(OPTIONS, size) + 3


@pytest.mark.parametrize("size", [5, 30])
def test_nobody_is_called_dead_because_of_lost_packets(size: int) -> None:
    network = formed(size, loss=0.05)
    network.run(120)
    assert network.deaths == []
    network.loss = 0.0
    assert network.run(30, until=network.has_converged)


def test_a_node_that_is_cut_off_one_way_is_found_by_way_of_others() -> None:
    network = formed(6)
    network.cuts |= {(1, 2), (2, 3)}
    network.run(60)
    assert network.suspicions == []


def test_nobody_dies_when_one_node_cannot_hear_for_less_than_the_suspicion_lasts() -> None:
    network = formed(6)
    network.stop(network.nodes[2], 3.0)
    network.run(30)
    assert network.deaths == []
    assert network.has_converged()


def test_a_stopped_node_that_wakes_accuses_nobody_and_is_alive_again() -> None:
    network = formed(6)
    network.stop(network.nodes[2], 60.0)
    network.run(59)
    assert {whom for _, _, whom in network.deaths} == {3}
    network.nodes[2].queue.clear()  # what its kernel had kept is lost, too
    assert network.run(15, until=network.has_converged)
    assert {whom for _, _, whom in network.deaths + network.suspicions} == {3}


def test_the_sides_of_a_healed_cut_find_each_other_and_nobody_dies_of_it() -> None:
    network = formed(8)
    left, right = range(1, 5), range(5, 9)
    network.cuts |= {(a, b) for a in left for b in right} | {(a, b) for a in right for b in left}
    network.run(60)
    assert all(len(node.told_living) == 4 for node in network.up())
    before = len(network.deaths)
    network.cuts.clear()
    assert network.run(3 * OPTIONS.rejoin_interval_s, until=network.has_converged)
    assert network.deaths[before:] == []  # neither side takes the other's word about its own


def test_a_node_that_restarts_elsewhere_with_its_id_is_known_there() -> None:
    network = formed(6)
    seeds = [("10.0.0.1", 7946)]
    network.crash(network.nodes[5])
    network.run(0.5)
    network.start(network.nodes[5], seeds, incarnation=0, moved=True)  # it has forgotten its incarnation
    assert network.run(15, until=network.has_converged)
    assert network.nodes[0].swim is not None
    assert network.nodes[0].swim.members[6].host.startswith("10.3.")
    assert network.deaths == []


def test_a_whole_cluster_that_restarts_forms_again() -> None:
    network = formed(5)
    for node in network.nodes:
        network.crash(node)
    network.run(5)
    for node in network.nodes:
        network.start(node, [("10.0.0.1", 7946), ("10.0.0.2", 7946)], incarnation=0)
    assert network.run(20, until=network.has_converged)


def test_skew_is_estimated_within_half_a_round_trip() -> None:
    network = formed(5)
    network.run(60)
    one = network.nodes[0]
    assert one.swim is not None
    for other in network.nodes[1:]:
        skew_ms, rtt_ms = one.swim.skew_ms(other.node_id), one.swim.rtt_ms(other.node_id)
        assert skew_ms is not None and rtt_ms is not None
        assert abs(skew_ms - (other.clock_ms - one.clock_ms)) <= rtt_ms / 2 + 1


# Machines that are broken on purpose, and the claim above that catches each. What does not show in a cluster, because
# others make up for it, is for the tests of single rules.


def _takes_deaths_from_an_exchange_at_once(self: Belief, record: Member, way: Way = Way.GOSSIP) -> None:
    _hear(self, record, Way.GOSSIP)


def _refutes_with_the_same_incarnation(self: Belief, record: Member) -> None:
    if record.supersedes(self.me):
        self._change_me(self.me)


def _histories() -> None:
    check(range(SEEDS))


_hear = Belief.hear

FLAWS = {
    "never refutes": (_histories, (Belief, "_hear_of_me", lambda self, record: None)),
    "refutes without a new incarnation": (_histories, (Belief, "_hear_of_me", _refutes_with_the_same_incarnation)),
    "never looks for the lost": (_histories, (Contacts, "_call_the_lost", lambda self: None)),
    "suspects for ever": (_histories, (belief, "suspicion_s", lambda options, living: 1e9)),
    "gives no time to refute": (
        lambda: test_nobody_is_called_dead_because_of_lost_packets(30),
        (belief, "suspicion_s", lambda options, living: 0.1),
    ),
    "asks nobody else": (
        test_a_node_that_is_cut_off_one_way_is_found_by_way_of_others,
        (Detector, "on_ping_request", lambda self, packet, body, source: None),
    ),
    "takes another's word about a death at once": (
        test_the_sides_of_a_healed_cut_find_each_other_and_nobody_dies_of_it,
        (Belief, "hear", _takes_deaths_from_an_exchange_at_once),
    ),
    "passes nothing on": (
        lambda: test_a_dead_node_is_reported_by_all_within_the_bound(30, 0.0),
        (NewsQueue, "put", lambda self, record: None),
    ),
}


@pytest.mark.skipif(ONE is not None, reason="one seed is replayed")
@pytest.mark.parametrize("flaw", list(FLAWS))
def test_a_broken_machine_is_caught(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, patch = FLAWS[flaw]
    monkeypatch.setattr(*patch)
    with pytest.raises(AssertionError):
        claim()
