"""Full exchange: two rosters become one, page by page."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from swim_stage import WALL_MS, Solo, member

from headrace.swim.machine import Swim
from headrace.swim.member import Member, State
from headrace.swim.messages import END, Ack, Ping, Sync, SyncReply
from headrace.swim.options import SwimOptions
from headrace.swim.roster import Roster


def machine(number: int, seed: int = 1) -> Swim:
    return Swim(member(number), SwimOptions(), Random(seed), cluster_id="mill", secret=b"grain")


def teach(swim: Swim, records: list[Member]) -> None:
    for record in records:
        swim._belief.hear(record)
    swim._belief.news._rounds.clear()
    swim.take()


def converse(one: Swim, two: Swim) -> int:
    """Carry packets between two machines until they have nothing more to say; how many there were."""
    machines, count = {one.me.address: one, two.me.address: two}, 0
    waiting = [(one, packet) for packet in one.take().packets]
    while waiting:
        sender, (host, port, raw) = waiting.pop(0)
        assert len(raw) <= 1200
        count += 1
        target = machines.get((host, port))
        if target:
            target.receive(raw, sender.me.address, 1.0, WALL_MS)
            waiting += [(target, packet) for packet in target.take().packets]
    return count


lives = st.dictionaries(
    st.integers(10, 400), st.tuples(st.integers(0, 2), st.sampled_from(["a", "b" * 60])), max_size=150
)


@settings(max_examples=40, deadline=None)
@given(lives, lives)
def test_after_an_exchange_both_know_the_living_that_either_knew(first, second) -> None:
    one, two = machine(1), machine(2)
    for swim, known in ((one, first), (two, second)):
        teach(swim, [member(node, incarnation, rack=rack) for node, (incarnation, rack) in known.items()])
    one._exchange.begin(two.me.address, 2)
    converse(one, two)
    assert one._exchange.completed == 1
    assert one.members == two.members
    assert one.members.keys() == first.keys() | second.keys() | {1, 2}
    assert one._belief.roster.digest == two._belief.roster.digest


def test_two_who_know_the_same_find_out_with_one_page() -> None:
    one, two = machine(1), machine(2)
    known = [member(node) for node in range(3, 500)]
    teach(one, [*known, member(2)])
    teach(two, [*known, member(1)])
    one._exchange.begin(two.me.address, 2)
    assert converse(one, two) == 2


def test_a_page_that_is_lost_is_asked_for_again_and_then_given_up() -> None:
    solo = Solo([2])
    solo.swim._exchange.begin(("node2", 7946), 2)
    asked = [packet for packet in solo.run(10, answering=[2]) if isinstance(packet.body, Sync)]
    assert len(asked) == 3
    assert len({packet.body.number for packet in asked}) == 3
    assert not solo.swim._exchange.is_running


def test_answers_to_another_question_or_from_somebody_else_are_not_taken() -> None:
    solo = Solo([2, 3])
    solo.swim._exchange.begin(("node2", 7946), 2)
    solo.collect()
    number = solo.sent[-1][1].body.number
    solo.hear(member(3), SyncReply(number, END, (member(9),)))
    solo.hear(member(2), SyncReply(number - 1, END, (member(9),)))
    assert solo.state(9) is None
    solo.hear(member(2), SyncReply(number, END, (member(9),)))
    assert solo.state(9) is State.ALIVE


def test_an_answer_that_does_not_go_on_ends_the_exchange() -> None:
    solo = Solo([2])
    solo.swim._exchange.begin(("node2", 7946), 2)
    solo.collect()
    assert solo.hear(member(2), SyncReply(solo.sent[-1][1].body.number, 0, ())) == []
    assert not solo.swim._exchange.is_running


def test_one_packet_answers_one_packet_however_much_there_is_to_say() -> None:
    solo = Solo(range(2, 400))
    answers = solo.hear(member(2), Sync(7, 0, END, ()))
    assert len(answers) == 1
    assert answers[0].body.upper < END
    assert solo.sizes[-1] <= 1200


def test_there_is_a_full_exchange_with_somebody_in_every_interval() -> None:
    solo = Solo([2, 3])
    asked = [
        packet for packet in solo.run(95, answering=[2, 3]) if isinstance(packet.body, Sync) and not packet.body.lower
    ]
    assert 3 <= len({packet.body.number for packet in asked}) <= 12  # each is tried three times: nobody replies


def test_a_death_heard_in_an_exchange_is_only_a_suspicion_of_somebody_living() -> None:
    solo = Solo([2, 3])
    solo.hear(member(2), Sync(7, 0, END, (member(3, state=State.DEAD),)))
    assert solo.state(3) is State.SUSPECT
    solo.hear(member(2), Sync(8, 0, END, (member(3, state=State.DEAD),)))
    assert solo.state(3) is State.SUSPECT  # still: its time runs


def test_the_death_of_somebody_unknown_is_not_kept() -> None:
    solo = Solo([2])
    solo.hear(member(2), Sync(7, 0, END, (member(9, state=State.DEAD), member(10, state=State.LEFT))))
    assert solo.swim.members.keys() == {1, 2}
    assert solo.events == []


def test_what_a_node_learns_while_it_joins_is_no_news() -> None:
    solo = Solo()
    solo.swim.join([("seed", 7946)])
    _, ping = solo.until(Ping)
    (asked,) = [p for p in solo.hear(member(2), Ack(ping.number, 2)) if isinstance(p.body, Sync)]
    solo.swim._belief.news._rounds.clear()
    solo.hear(member(2), SyncReply(asked.body.number, END, (member(3), member(4))))
    assert solo.swim.members.keys() == {1, 2, 3, 4}
    assert not solo.swim._belief.news


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(State)), max_size=30))
def test_a_digest_depends_on_the_living_only_not_on_how_they_came_about(steps) -> None:
    one, two = Roster(100), Roster(100)
    for node, incarnation, state in steps:
        one.put(member(node, incarnation, state))
    for record in one.view.values():
        if record.is_living:
            two.put(record)
    assert (one.digest, one.living) == (two.digest, two.living)
