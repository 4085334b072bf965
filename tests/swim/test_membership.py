"""Joining, leaving, coming back, restarting, and what a node may be made to hold: one test per rule."""

from __future__ import annotations

import pytest
from swim_stage import Solo, member

from headrace.swim.contacts import MAX_SEEDS
from headrace.swim.member import ANYONE, State
from headrace.swim.messages import END, Ack, News, Ping, Sync, SyncReply
from headrace.swim.options import SwimOptions
from headrace.swim.output import IdentityContested, MemberDied, MemberJoined, MemberLeft, MemberUpdated

SEEDS = [("seed-a", 7946), ("seed-b", 7946)]


def joined(solo: Solo) -> None:
    """Node 2 answers at the first seed, and has nothing to add."""
    _, ping = solo.until(Ping)
    (sync,) = [p for p in solo.hear(member(2), Ack(ping.number, 2), source=SEEDS[0]) if isinstance(p.body, Sync)]
    solo.hear(member(2), SyncReply(sync.body.number, END, ()))
    solo.tick()


def test_all_seeds_are_asked_until_one_answers() -> None:
    solo = Solo()
    solo.swim.join(SEEDS)
    solo.run(3.5)
    asked = [address for address, packet in solo.sent if packet.to == ANYONE and isinstance(packet.body, Ping)]
    assert asked.count(SEEDS[0]) == asked.count(SEEDS[1]) >= 3
    assert solo.swim.is_joining
    joined(solo)
    assert not solo.swim.is_joining
    solo.forget()
    solo.run(3, answering=[2])
    assert SEEDS[0] not in {address for address, packet in solo.sent if packet.to == ANYONE}


def test_a_node_has_joined_when_an_exchange_is_complete_not_when_a_seed_answers() -> None:
    solo = Solo()
    solo.swim.join(SEEDS)
    _, ping = solo.until(Ping)
    solo.hear(member(2), Ack(ping.number, 2))
    solo.tick()
    assert solo.swim.is_joining


def test_a_node_joins_by_whoever_turns_up_when_no_seed_answers() -> None:
    solo = Solo()
    solo.swim.join(SEEDS)
    solo.hear(member(7), Ping(1))
    sync, _ = solo.until(Sync)
    assert sync.to == 7


def test_the_first_node_of_a_cluster_has_nobody_to_ask() -> None:
    solo = Solo()
    solo.swim.join([("node1", 7946)])
    assert not solo.swim.is_joining
    assert solo.run(60) == []


def test_of_too_many_seeds_those_named_last_are_asked() -> None:
    solo = Solo()
    solo.swim.join([("seed0", 1), ("seed1", 1)])
    solo.swim.join([(f"seed{number}", 1) for number in (*range(2, MAX_SEEDS + 1), 0)])
    solo.run(1)
    asked = {host for (host, _), packet in solo.sent if packet.to == ANYONE}
    assert len(asked) == MAX_SEEDS and "seed0" in asked and "seed1" not in asked


def test_any_authentic_packet_makes_its_sender_a_member() -> None:
    solo = Solo()
    solo.hear(member(4, rack="r2", meta=b"9092"), Ping(1))
    assert solo.events == [MemberJoined(member(4, rack="r2", meta=b"9092"))]


def test_news_are_passed_on_to_others_a_bounded_number_of_times() -> None:
    solo = Solo([2, 3, 4])
    solo.hear(member(2), news=[member(9)])
    carried = [packet for packet in solo.run(10, answering=[2, 3, 4]) if member(9) in packet.news]
    assert len(carried) == 6


def test_news_do_not_wait_for_the_next_probe() -> None:
    solo = Solo([2, 3, 4])
    solo.run(2, answering=[2, 3, 4])
    solo.hear(member(2), news=[member(9)])
    assert any(isinstance(packet.body, News) and member(9) in packet.news for packet in solo.run(0.3))


def test_without_news_nothing_is_said_but_probes() -> None:
    solo = Solo([2, 3])
    assert {type(packet.body) for packet in solo.run(10, answering=[2, 3])} == {Ping}


def test_what_is_known_already_is_no_news_and_no_event() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3), member(2)])
    assert not solo.swim._belief.news
    assert solo.events == []


def test_no_packet_is_longer_than_its_budget_however_much_news_there_is() -> None:
    solo = Solo([2, 3])
    for number in range(10, 400):
        solo.hear(member(2), news=[member(number, rack="r" * 40)])
    solo.run(5, answering=[2, 3])
    assert 1100 < max(solo.sizes) <= 1200


def test_a_node_that_leaves_says_so_and_falls_silent() -> None:
    solo = Solo([2, 3])
    solo.swim.leave()
    solo.run(2)
    assert {packet.to for _, packet in solo.sent} == {2, 3}
    assert all(packet.sender == member(1, state=State.LEFT) for _, packet in solo.sent)
    assert solo.swim.has_left
    solo.forget()
    assert solo.run(60) == []


def test_a_node_that_has_left_does_not_refute() -> None:
    solo = Solo([2])
    solo.swim.leave()
    solo.hear(member(2), news=[member(1, 0, State.DEAD)])
    assert solo.swim.me == member(1, 0, State.LEFT)
    solo.hear(member(2), news=[member(1, 5)])  # it is known by an earlier life
    assert solo.swim.me == member(1, 6, State.LEFT)


def test_one_who_left_is_neither_suspected_nor_looked_for() -> None:
    solo = Solo([2, 3])
    solo.hear(member(3, state=State.LEFT))
    assert solo.events == [MemberLeft(member(3, state=State.LEFT))]
    assert 3 not in {packet.to for packet in solo.run(40, answering=[2])}
    assert solo.state(3) is State.LEFT


def test_one_who_left_may_come_back() -> None:
    solo = Solo([2, 3])
    solo.hear(member(3, state=State.LEFT))
    (ack,) = solo.hear(member(3), Ping(1))  # a new life that has forgotten the old one
    assert member(3, state=State.LEFT) in ack.news
    solo.hear(member(3, 1))
    assert isinstance(solo.events[-1], MemberJoined)


def test_the_dead_are_looked_for_and_told() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, state=State.DEAD)])
    found = [packet for packet in solo.run(22, answering=[2]) if packet.to == 3]
    assert len(found) == 2
    assert all(packet.news[0] == member(3, state=State.DEAD) for packet in found)
    _, ping = solo.until(Ping, to=3, seconds=10)
    answer = solo.hear(member(3, 1), Ack(ping.number, 3))
    assert isinstance(solo.events[-1], MemberJoined)
    assert isinstance(answer[0].body, Sync)  # and they exchange what they know


def test_all_the_lost_have_their_turn() -> None:
    solo = Solo(range(2, 12))
    solo.hear(member(2), news=[member(number, state=State.DEAD) for number in range(3, 12)])
    called = [packet.to for packet in solo.run(28, answering=[2]) if packet.to != 2]
    assert sorted(called) == list(range(3, 12))


def test_a_seed_behind_which_nobody_is_known_is_asked_now_and_then() -> None:
    solo = Solo()
    solo.swim.join(SEEDS)
    joined(solo)
    solo.forget()
    solo.run(60, answering=[2])
    asked = {address for address, packet in solo.sent if packet.to == ANYONE}
    assert asked == {SEEDS[1]}  # node 2 lives behind the first


def test_the_gone_are_forgotten() -> None:
    solo = Solo([2, 3], SwimOptions(forget_s=20))
    solo.hear(member(2), news=[member(3, state=State.DEAD)])
    solo.run(18, answering=[2])
    assert solo.state(3) is State.DEAD
    solo.run(4, answering=[2])
    assert solo.state(3) is None


def test_those_who_came_back_are_not_forgotten() -> None:
    solo = Solo([2, 3], SwimOptions(forget_s=20))
    solo.hear(member(2), news=[member(3, state=State.DEAD)])
    solo.hear(member(3, 1))
    solo.run(25, answering=[2, 3])
    assert solo.state(3) is State.ALIVE


def test_a_roster_has_a_largest_size_and_the_gone_make_way() -> None:
    solo = Solo([2, 3], SwimOptions(max_members=5))
    for number in range(10, 200):
        solo.hear(member(2), news=[member(number)])
    assert solo.swim.members.keys() == {1, 2, 3, 10, 11}
    solo.hear(member(2), news=[member(10, state=State.DEAD)])
    solo.hear(member(2), news=[member(50)])
    assert solo.swim.members.keys() == {1, 2, 3, 11, 50}


def test_a_restart_with_a_higher_incarnation_and_another_address_is_an_update() -> None:
    solo = Solo([2, 3])
    solo.hear(member(3, 50, host="moved"))
    assert solo.events == [MemberUpdated(member(3, 50, host="moved"))]
    assert solo.swim.members[3].host == "moved"


def test_a_restart_that_has_forgotten_its_incarnation_is_told() -> None:
    solo = Solo([2])
    solo.hear(member(3, 7))
    (ack,) = solo.hear(member(3, 0, host="moved"), Ping(1))
    assert member(3, 7) in ack.news
    assert solo.swim.members[3] == member(3, 7)


def test_a_node_takes_up_the_incarnations_of_its_earlier_life() -> None:
    solo = Solo([2], me=member(1, 0, host="moved"))
    solo.hear(member(2), news=[member(1, 7)])
    assert solo.swim.me == member(1, 8, host="moved")
    assert solo.events == []


def test_two_living_nodes_with_one_id_are_noticed() -> None:
    solo = Solo([2])
    solo.hear(member(2), news=[member(1, 7, host="twin")])
    solo.hear(member(1, 9, host="twin"), Ping(1))
    assert solo.events == [IdentityContested(member(1, 9, host="twin"))]


def test_a_packet_of_its_own_that_comes_back_means_nothing() -> None:
    solo = Solo([2])
    assert solo.hear(solo.swim.me, Ping(1)) == []
    assert solo.events == []


def test_a_node_may_describe_itself_anew() -> None:
    solo = Solo([2])
    solo.swim.update("r9", b"new")
    assert solo.swim.me == member(1, 1, rack="r9", meta=b"new")
    assert solo.swim.me in solo.tick()[0].news
    with pytest.raises(ValueError):
        solo.swim.update("r" * 250, b"x" * 250)


def test_a_death_that_is_gossiped_is_believed() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, state=State.DEAD)])
    assert solo.events == [MemberDied(member(3, state=State.DEAD))]


def test_the_living_are_counted() -> None:
    solo = Solo([2, 3, 4])
    solo.hear(member(2), news=[member(3, state=State.DEAD), member(4, state=State.SUSPECT)])
    assert solo.swim.living == 3
