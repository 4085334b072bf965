"""Probes, suspicion and refutation: one test per rule."""

from __future__ import annotations

import pytest
from swim_stage import Solo, member

from headrace.swim.member import State
from headrace.swim.messages import Ack, Ping, PingRequest
from headrace.swim.options import SwimOptions
from headrace.swim.output import MemberDied, MemberJoined, MemberSuspected, MemberUpdated
from headrace.swim.skew import SAMPLES


def test_each_node_is_probed_once_in_a_round() -> None:
    solo = Solo([2, 3, 4, 5])
    pinged = [packet.to for packet in solo.run(9, answering=[2, 3, 4, 5]) if isinstance(packet.body, Ping)]
    assert sorted(pinged[:4]) == sorted(pinged[4:8]) == [2, 3, 4, 5]


def test_a_ping_is_acknowledged_to_where_it_came_from() -> None:
    solo = Solo([2])
    (ack,) = solo.hear(member(2), Ping(77), source=("elsewhere", 9))
    assert (ack.body, ack.to) == (Ack(77, 1), 2)
    assert solo.sent[-1][0] == ("elsewhere", 9)


def test_nobody_answers_for_the_node_that_had_the_address_before() -> None:
    solo = Solo([2])
    assert solo.hear(member(3), Ping(77), to=9) == []
    assert solo.state(3) is State.ALIVE  # but it has heard who asked


def test_a_silent_node_is_probed_by_way_of_others_before_it_is_suspected() -> None:
    solo = Solo([2, 3, 4, 5, 6])
    ping, body = solo.until(Ping)
    asked = [packet for packet in solo.run(0.6) if isinstance(packet.body, PingRequest)]
    assert len(asked) == len({packet.to for packet in asked} - {ping.to}) == 3
    assert all((packet.body.number, packet.body.target) == (body.number, ping.to) for packet in asked)
    assert solo.state(ping.to) is State.ALIVE
    solo.run(0.6)
    assert solo.state(ping.to) is State.SUSPECT


def test_the_silent_node_itself_is_not_asked_to_probe_itself() -> None:
    solo = Solo([2, 3, 4])
    ping, _ = solo.until(Ping)
    asked = [packet.to for packet in solo.run(0.6) if isinstance(packet.body, PingRequest)]
    assert sorted(asked) == sorted({2, 3, 4} - {ping.to})


@pytest.mark.parametrize("way", ["straight", "late", "by way of another"])
def test_any_answer_within_the_interval_is_enough(way: str) -> None:
    solo = Solo([2, 3])
    ping, body = solo.until(Ping)
    other = 5 - ping.to
    solo.run({"straight": 0.1, "late": 0.8, "by way of another": 0.8}[way])
    solo.hear(member(other if way == "by way of another" else ping.to), Ack(body.number, ping.to))
    solo.run(0.5)
    assert solo.state(ping.to) is State.ALIVE


def test_answers_to_another_probe_or_about_another_node_do_not_count() -> None:
    solo = Solo([2, 3])
    ping, body = solo.until(Ping)
    solo.hear(member(ping.to), Ack(body.number - 1, ping.to))
    solo.hear(member(ping.to), Ack(body.number, 5 - ping.to))
    solo.run(1.1)
    assert solo.state(ping.to) is State.SUSPECT


def test_a_node_that_is_asked_probes_and_passes_the_answer_on() -> None:
    solo = Solo([2, 3])
    (ping,) = solo.hear(member(2), PingRequest(77, 3))
    assert isinstance(ping.body, Ping) and ping.to == 3
    assert solo.hear(member(2), Ack(ping.body.number, 3)) == []  # only node 3 itself can say so
    (ack,) = solo.hear(member(3), Ack(ping.body.number, 3))
    assert (ack.to, ack.body) == (2, Ack(77, 3))
    assert solo.hear(member(3), Ack(ping.body.number, 3)) == []  # once


def test_favours_are_bounded_and_forgotten() -> None:
    solo = Solo([2, 3])
    for number in range(3000):
        solo.hear(member(2), PingRequest(number, 3))
    assert len(solo.swim._detector._favours) == 1000
    solo.run(1.2, answering=[2, 3])
    assert not solo.swim._detector._favours


def test_a_favour_for_somebody_unknown_is_not_done() -> None:
    solo = Solo([2])
    assert solo.hear(member(2), PingRequest(1, 99)) == []
    assert solo.hear(member(2), PingRequest(1, 1)) == []


def test_a_suspect_that_stays_silent_is_dead_after_the_suspicion() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, state=State.SUSPECT)])
    solo.run(3.8, answering=[2])
    assert solo.state(3) is State.SUSPECT
    solo.run(0.4, answering=[2])
    assert solo.state(3) is State.DEAD
    assert [type(event) for event in solo.events] == [MemberSuspected, MemberDied]


def test_a_suspicion_that_is_heard_again_does_not_begin_anew() -> None:
    solo = Solo([2, 3])
    for _ in range(5):
        solo.hear(member(2), news=[member(3, state=State.SUSPECT)])
        solo.run(1.0, answering=[2])
    assert solo.state(3) is State.DEAD


def test_suspicion_lasts_longer_in_a_larger_cluster() -> None:
    solo = Solo(range(2, 101))
    solo.hear(member(2), news=[member(3, state=State.SUSPECT)])
    solo.run(7.8, answering=range(2, 101))
    assert solo.state(3) is State.SUSPECT
    solo.run(0.4, answering=range(2, 101))
    assert solo.state(3) is State.DEAD


def test_a_refutation_ends_a_suspicion_and_the_same_word_does_not() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, state=State.SUSPECT)])
    solo.hear(member(3))  # it lives, but does not know of it
    assert solo.state(3) is State.SUSPECT
    solo.hear(member(3, 1))
    assert solo.state(3) is State.ALIVE
    solo.run(10, answering=[2, 3])
    assert solo.state(3) is State.ALIVE
    assert [type(event) for event in solo.events] == [MemberSuspected, MemberUpdated]


def test_a_suspect_that_asks_is_told_at_once() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, state=State.SUSPECT)])
    solo.swim._belief.news._rounds.clear()
    (ack,) = solo.hear(member(3), Ping(5))
    assert ack.news == (member(3, state=State.SUSPECT),)


def test_a_probe_tells_a_suspect_first() -> None:
    solo = Solo([3])
    solo.hear(member(3), news=[member(3, state=State.SUSPECT)])
    solo.swim._belief.news._rounds.clear()
    ping, _ = solo.until(Ping)
    assert ping.news == (member(3, state=State.SUSPECT),)


@pytest.mark.parametrize("state", [State.SUSPECT, State.DEAD, State.LEFT])
def test_a_node_refutes_what_is_said_of_it_with_a_higher_incarnation(state: State) -> None:
    solo = Solo([2])
    answers = solo.hear(member(2), Ping(5), news=[member(1, 4, state)])
    assert solo.swim.me == member(1, 5)
    assert answers[0].sender == member(1, 5)
    assert solo.state(1) is State.ALIVE
    assert solo.events == []


def test_what_is_old_is_not_refuted() -> None:
    solo = Solo([2], me=member(1, 9))
    solo.hear(member(2), news=[member(1, 8, State.DEAD), member(1, 9)])
    assert solo.swim.me == member(1, 9)


def test_a_refutation_is_news() -> None:
    solo = Solo([2])
    solo.hear(member(2), news=[member(1, 0, State.SUSPECT)])
    assert member(1, 1) in solo.tick()[0].news


def test_nobody_can_push_an_incarnation_beyond_its_end() -> None:
    solo = Solo([2])
    solo.hear(member(2), news=[member(1, 2**62, State.DEAD)])
    solo.hear(member(2), Ping(1))  # what it sends can still be read
    assert solo.swim.me.state is State.ALIVE


def test_the_dead_come_back_with_a_higher_incarnation_only() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, 4, State.DEAD)])
    solo.hear(member(2), news=[member(3, 4), member(3, 4, State.SUSPECT)])
    assert solo.state(3) is State.DEAD
    solo.hear(member(2), news=[member(3, 5)])
    assert solo.state(3) is State.ALIVE
    assert [type(event) for event in solo.events] == [MemberDied, MemberJoined]


def test_the_dead_are_not_probed_and_those_who_come_back_are() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), news=[member(3, 4, State.DEAD)])
    pinged = {packet.to for packet in solo.run(4, answering=[2]) if isinstance(packet.body, Ping)}
    assert pinged == {2}
    solo.hear(member(3, 5))
    pinged = {packet.to for packet in solo.run(4, answering=[2, 3]) if isinstance(packet.body, Ping)}
    assert pinged == {2, 3}


def test_a_node_that_has_slept_accuses_nobody() -> None:
    solo = Solo([2, 3])
    ping, body = solo.until(Ping)
    solo.hear(member(5 - ping.to), news=[member(5 - ping.to, state=State.SUSPECT)])
    solo.tick(60.0)  # stopped, or stuck
    assert solo.state(ping.to) is State.ALIVE
    assert solo.state(5 - ping.to) is State.SUSPECT
    solo.hear(member(ping.to), Ack(body.number, ping.to))
    solo.run(0.8, answering=[2, 3])
    assert solo.state(ping.to) is State.ALIVE


def test_a_clock_that_goes_back_stops_nothing() -> None:
    solo = Solo([2])
    solo.tick(-50.0)
    solo.now_s += 50.0
    assert solo.run(2.0, answering=[2])


def test_skew_comes_from_straight_answers_only() -> None:
    solo = Solo([2, 3])
    assert solo.swim.skew_ms(2) is None
    ping, body = solo.until(Ping)
    solo.now_s += 0.010
    solo.hear(member(5 - ping.to), Ack(body.number, ping.to), wall_ms=solo.wall_ms)
    assert solo.swim.skew_ms(ping.to) is None
    ping, body = solo.until(Ping, to=5 - ping.to)
    solo.now_s += 0.010
    solo.hear(member(ping.to), Ack(body.number, ping.to), wall_ms=solo.wall_ms + 250)
    assert solo.swim.skew_ms(ping.to) == pytest.approx(255, abs=2)
    assert solo.swim.rtt_ms(ping.to) == pytest.approx(10, abs=1)


def test_an_answer_that_comes_twice_is_measured_once() -> None:
    solo = Solo([2])
    _, body = solo.until(Ping)
    for _ in range(SAMPLES):
        solo.now_s += 0.02
        solo.hear(member(2), Ack(body.number, 2))
    assert len(solo.swim._detector._skews[2]._samples) == 1


def test_stamps_of_others_move_the_hybrid_clock() -> None:
    solo = Solo([2])
    stamp = (solo.wall_ms + 2000) << 16
    (ack,) = solo.hear(member(2), Ping(5), stamp=stamp)
    assert ack.stamp > stamp
    (ack,) = solo.hear(member(2), Ping(6), stamp=(solo.wall_ms + 60_000) << 16)
    assert ack.stamp < (solo.wall_ms + 3000) << 16
    assert solo.swim.clock.refused == 1


@pytest.mark.parametrize(
    "wrong",
    [{"probe_timeout_s": 1.0}, {"packet_bytes": 1199}, {"indirect_probes": 0}, {"suspicion_mult": -1}],
)
def test_options_that_cannot_work_are_errors(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        SwimOptions(**wrong)  # type: ignore[arg-type]
