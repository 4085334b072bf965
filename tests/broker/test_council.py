"""Nodes and their controller: commands from anywhere, sessions, voters, and requests that are handed on."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from headrace.broker.attendance import Attendance, caught_up
from headrace.broker.cluster_settings import ClusterSettings, parse_addresses
from headrace.broker.commands import (
    Beat,
    Describe,
    Join,
    ProducerIdsTaken,
    Refused,
    Register,
    Remove,
    TakeProducerIds,
)
from headrace.broker.council import NOT_LEADING, Council, command_frame, forwarded_answer, read_answer, read_forwarded
from headrace.broker.decisions import Standard
from headrace.broker.joining import join
from headrace.broker.nodes import NodeWatch
from headrace.core.errors import ApiError, ConfigError, ErrorCode, LinkError, ProtocolError
from headrace.gateways.kafka.hello import VERSIONS
from headrace.testing.quorum import Assembly
from headrace.testing.sim.loop import SimLoop

TICKET = UUID(int=7)
SETTINGS = ClusterSettings()


class Place:
    """One node's parts that have to do with the controller."""

    def __init__(self, hall: Hall, node_id: int, found: bool) -> None:
        self.controller = hall.assembly.add(node_id, found=found)
        self.nodes = NodeWatch(self.controller, SETTINGS, Standard())
        self.council = Council(node_id, "a-cluster", self.controller, self.nodes, Standard(), links=hall)
        self.attendance = Attendance(self.council, self.controller, SETTINGS)

    @property
    def image(self):
        return self.controller.image


class Hall:
    """Links that call another node's council; time is the loop's, moved by hand."""

    def __init__(self) -> None:
        self.assembly = Assembly()
        self.places: dict[int, Place] = {}
        self.forwards: list = []
        self.lost_answers = 0
        self.versions: dict[int, int] = {}
        self.now = 1000.0

    def add(self, node_id: int, *, found: bool = False) -> Place:
        place = self.places[node_id] = Place(self, node_id, found)
        place.nodes._now = lambda: self.now
        return place

    def version(self, node_id):
        return self.versions.get(node_id, VERSIONS[1])

    async def call(self, node_id, frame, *, lane, timeout_s):
        if node_id in self.assembly.down:
            raise LinkError("silence")
        if lane == "forward":
            self.forwards.append((node_id, frame))
            if self.lost_answers:
                self.lost_answers -= 1
                raise LinkError("the connection was lost")
            leads = self.places[node_id].council.leads
            return (
                b"\0\0\0\0" + forwarded_answer(self.places[node_id].controller.applied_index, b"answer")
                if leads
                else b"\0\0\0\0" + forwarded_answer(NOT_LEADING, b"")
            )
        return b"\0\0\0\0" + await self.places[node_id].council.answer(frame[10:])

    async def call_address(self, address, frame, *, lane, timeout_s):
        return await self.call(address[1], frame, lane=lane, timeout_s=timeout_s)

    async def wait(self, work):
        task = asyncio.ensure_future(work)
        for _ in range(300):
            await self.assembly.settle()
            if task.done():
                return task.result()
            await self.assembly.tick()
            await asyncio.sleep(0.001)
        raise AssertionError("it never ended")

    async def arrive(self, node_id: int, seed: int) -> Place:
        place = self.add(node_id)
        await self.wait(join(self, [("any", seed)], Join(node_id, f"h{node_id}", 9092, f"d{node_id}")))
        await self.wait(caught_up(place.controller))
        await self.register(node_id)
        return place

    async def register(self, node_id: int, *, clean: bool = True) -> None:
        place = self.places[node_id]
        await self.wait(place.attendance.register(Register(node_id, f"h{node_id}", 9092, None, f"d{node_id}", clean)))
        await self.wait(place.attendance.beat())

    @property
    def leader(self) -> Place:
        leader = self.assembly.leader
        assert leader is not None
        return self.places[leader.quorum.node_id]

    async def look(self, seconds: float = 0.2) -> None:
        self.now += seconds
        await self.wait(self.leader.nodes.look())
        await self.assembly.tick(3)


async def three() -> Hall:
    hall = Hall()
    hall.add(1, found=True)
    await hall.register(1)
    await hall.arrive(2, seed=1)
    await hall.arrive(3, seed=2)
    for _ in range(4):
        await hall.look()
    return hall


def run(scenario):
    SimLoop().run_until_complete(scenario())


def test_nodes_join_through_any_node_and_everybody_knows_them():
    async def scenario():
        hall = await three()
        for place in hall.places.values():
            assert sorted(place.image.brokers) == [1, 2, 3]
            assert not any(node.fenced for node in place.image.brokers.values())

    run(scenario)


def test_voters_come_in_odd_numbers():
    async def scenario():
        hall = Hall()
        hall.add(1, found=True)
        await hall.register(1)
        await hall.arrive(2, seed=1)
        await hall.look()
        assert hall.leader.controller.quorum.membership.voters == (1,)
        await hall.arrive(3, seed=1)
        for _ in range(3):
            await hall.look()
        assert hall.leader.controller.quorum.membership.voters == (1, 2, 3)
        await hall.arrive(4, seed=1)
        await hall.look()
        assert hall.leader.controller.quorum.membership.voters == (1, 2, 3)
        assert hall.leader.controller.quorum.membership.learners == (4,)

    run(scenario)


def test_a_voter_that_stays_away_is_replaced_by_a_learner_and_may_come_back_as_one():
    async def scenario():
        hall = await three()
        await hall.arrive(4, seed=1)
        hall.assembly.down.add(3)
        for _ in range(120):
            for node in (1, 2, 4):
                await hall.wait(hall.places[node].attendance.beat())
            await hall.look(0.4)
        quorum = hall.leader.controller.quorum
        assert quorum.membership.voters == (1, 2, 4)
        assert quorum.membership.learners == (3,)
        hall.assembly.down.discard(3)
        await hall.assembly.tick(30)
        assert hall.places[3].controller.applied_index == hall.leader.controller.applied_index
        assert hall.leader is hall.places[1]

    run(scenario)


def test_one_of_three_voters_stays_one_however_long_it_is_away():
    async def scenario():
        hall = await three()
        hall.assembly.down.add(3)
        for _ in range(120):
            for node in (1, 2):
                await hall.wait(hall.places[node].attendance.beat())
            await hall.look(0.4)
        assert hall.leader.controller.quorum.membership.voters == (1, 2, 3)
        hall.assembly.down = {2}  # for ever, with its disk
        await hall.assembly.tick(60)
        assert hall.leader is hall.places[1]  # two of three are a majority
        await hall.wait(hall.places[3].council.ask(TakeProducerIds(10)))

    run(scenario)


def test_two_of_five_voters_that_stay_away_leave_three():
    async def scenario():
        hall = await three()
        await hall.arrive(4, seed=1)
        await hall.arrive(5, seed=1)
        for _ in range(4):
            await hall.look()
        assert hall.leader.controller.quorum.membership.voters == (1, 2, 3, 4, 5)
        for away, left in (({5}, (1, 2, 3, 4, 5)), ({4, 5}, (1, 2, 3))):
            hall.assembly.down |= away
            for _ in range(120):
                for node in {1, 2, 3, 4} - away:
                    await hall.wait(hall.places[node].attendance.beat())
                await hall.look(0.4)
            assert hall.leader.controller.quorum.membership.voters == left

    run(scenario)


def test_a_node_id_that_is_taken_is_refused_for_good():
    async def scenario():
        hall = await three()
        with pytest.raises(ConfigError, match="another data directory"):
            await hall.wait(join(hall, [("any", 3)], Join(2, "h9", 9092, "another")))

    run(scenario)


def test_a_command_is_decided_wherever_it_is_asked():
    async def scenario():
        hall = await three()
        taken = [await hall.wait(place.council.ask(TakeProducerIds(10))) for place in hall.places.values()]
        assert [answer.first for answer in taken] == [0, 10, 20]

    run(scenario)


def test_a_command_finds_the_next_controller():
    async def scenario():
        hall = await three()
        hall.assembly.down.add(1)
        answer = await hall.wait(hall.places[2].council.ask(TakeProducerIds(10)))
        assert isinstance(answer, ProducerIdsTaken)

    run(scenario)


def test_without_a_majority_a_command_is_not_answered():
    async def scenario():
        hall = await three()
        hall.assembly.down |= {1, 2}
        with pytest.raises(ApiError) as refused:
            await hall.wait(hall.places[3].council.ask(TakeProducerIds(10), timeout_s=0.2))
        assert refused.value.code is ErrorCode.request_timed_out

    run(scenario)


def test_a_silent_node_is_fenced_after_its_session_and_comes_back_with_a_beat():
    async def scenario():
        hall = await three()
        for _ in range(5):
            for node in (1, 2):
                await hall.wait(hall.places[node].attendance.beat())
            await hall.look(0.4)
        assert [node.node_id for node in hall.leader.image.brokers.values() if node.fenced] == [3]
        beaten = await hall.wait(hall.places[3].attendance.beat())
        for _ in range(3):
            beaten = await hall.wait(hall.places[3].attendance.beat())
        assert not beaten.fenced
        assert not hall.leader.image.brokers[3].fenced

    run(scenario)


@pytest.mark.parametrize("hint", ["suspected", "refused"])
def test_a_hint_alone_fences_nobody_that_beats(hint):
    async def scenario():
        hall = await three()
        await hall.wait(hall.places[3].attendance.beat())
        tell = getattr(hall.leader.nodes, hint)
        tell(3)
        await hall.assembly.tick(3)
        assert not hall.leader.image.brokers[3].fenced
        hall.now += 0.5
        tell(3)
        await hall.assembly.tick(3)
        assert hall.leader.image.brokers[3].fenced

    run(scenario)


def test_a_node_that_nobody_listens_for_is_fenced_as_soon_as_a_beat_is_overdue():
    async def scenario():
        hall = await three()
        await hall.wait(hall.places[3].attendance.beat())
        hall.now += 0.1
        hall.leader.nodes.refused(3)
        await hall.look(0.1)
        assert not hall.leader.image.brokers[3].fenced
        await hall.wait(hall.places[2].attendance.beat())
        await hall.look(0.2)
        assert [node.node_id for node in hall.leader.image.brokers.values() if node.fenced] == [3]

    run(scenario)


def test_a_beat_refutes_that_nobody_listens():
    async def scenario():
        hall = await three()
        hall.leader.nodes.refused(3)
        hall.now += 0.1
        await hall.wait(hall.places[3].attendance.beat())
        await hall.look(0.4)
        await hall.look(0.4)
        assert not hall.leader.image.brokers[3].fenced

    run(scenario)


def test_a_new_controller_fences_the_one_before_at_once_if_nobody_listens_there():
    async def scenario():
        hall = await three()
        hall.assembly.down.add(1)
        for node in (2, 3):
            hall.places[node].nodes.refused(1)
            hall.places[node].controller.quorum.doubt(1)
        await hall.assembly.elect()
        await hall.wait(hall.leader.attendance.beat())
        await hall.assembly.tick(3)
        assert [node.node_id for node in hall.leader.image.brokers.values() if node.fenced] == [1]

    run(scenario)


def test_a_controller_that_was_held_up_blames_nobody():
    async def scenario():
        hall = await three()
        await hall.look(30.0)
        assert not any(node.fenced for node in hall.leader.image.brokers.values())

    run(scenario)


def test_a_new_controller_gives_new_sessions_but_a_short_one_to_the_leader_before():
    async def scenario():
        hall = await three()
        hall.assembly.down.add(1)
        await hall.assembly.elect()
        await hall.look(0.1)
        assert not hall.leader.image.brokers[1].fenced
        for node in (2, 3):
            await hall.wait(hall.places[node].attendance.beat())
        for _ in range(3):
            await hall.look(0.2)
        assert [node.node_id for node in hall.leader.image.brokers.values() if node.fenced] == [1]

    run(scenario)


def test_a_node_that_leaves_is_fenced_at_once_and_hands_the_quorum_over():
    async def scenario():
        hall = await three()
        await hall.wait(hall.places[1].attendance.leave())
        await hall.assembly.tick(5)
        assert hall.leader is not hall.places[1]
        assert hall.leader.image.brokers[1].fenced

    run(scenario)


def test_leaving_takes_no_longer_than_it_may_though_nobody_answers():
    async def scenario():
        hall = await three()
        place = hall.places[3]
        place.council.ask = lambda command, *, timeout_s: never(timeout_s)
        settings = ClusterSettings(session_ms=60_000, leave_ms=2000)
        leaving = Attendance(place.council, place.controller, settings)
        begun = asyncio.get_running_loop().time()
        await leaving.leave()
        assert 2.0 <= asyncio.get_running_loop().time() - begun < 3.0

    async def never(timeout_s):
        await asyncio.sleep(timeout_s)
        raise ApiError(ErrorCode.request_timed_out)

    run(scenario)


def test_an_older_copy_of_a_data_directory_is_refused():
    async def scenario():
        hall = await three()
        place = hall.places[3]
        await hall.wait(place.attendance.register(Register(3, "h3", 9092, None, "d3", True, 5)))
        for start in (4, 5):  # a copy of two runs ago, and of the run before the last
            restored = Attendance(place.council, place.controller, SETTINGS)
            with pytest.raises(ConfigError, match="an older copy"):
                await hall.wait(restored.register(Register(3, "h3", 9092, None, "d3", True, start)))
        await hall.wait(place.attendance.beat())
        assert place.attendance.replaced is None

    run(scenario)


def test_a_node_that_was_replaced_by_a_later_start_stops_beating():
    async def scenario():
        hall = await three()
        old = hall.places[3].attendance
        new = Attendance(hall.places[3].council, hall.places[3].controller, SETTINGS)
        await hall.wait(new.register(Register(3, "h3", 9092, None, "d3", True)))
        assert new.epoch == old.epoch + 1
        assert await hall.wait(old.beat()) is None
        assert old.replaced is not None

    run(scenario)


def test_a_removed_node_leaves_the_quorum():
    async def scenario():
        hall = await three()
        await hall.wait(hall.places[3].attendance.leave())
        await hall.wait(hall.places[1].council.ask(Remove(3)))
        assert 3 not in hall.leader.image.brokers
        assert 3 not in hall.leader.controller.quorum.membership.members

    run(scenario)


def test_the_cluster_can_be_described_from_anywhere():
    async def scenario():
        hall = await three()
        described = await hall.wait(hall.places[3].council.ask(Describe()))
        assert described.cluster_id == "a-cluster"
        assert described.leader == 1
        assert [(node.node_id, node.state, node.voter) for node in described.nodes] == [
            (1, "alive", True),
            (2, "alive", True),
            (3, "alive", True),
        ]

    run(scenario)


def test_a_clients_request_goes_to_the_controller_and_the_answer_waits_for_the_image():
    async def scenario():
        hall = await three()
        assert await hall.wait(hall.places[3].council.forward(b"a frame", "10.0.0.1", TICKET)) == b"answer"
        [(node, frame)] = hall.forwards
        assert node == 1
        assert read_forwarded(1, frame[10:]) == ("10.0.0.1", b"a frame", TICKET)
        assert hall.places[3].controller.applied_index >= hall.places[1].controller.applied_index

    run(scenario)


def test_a_controller_of_an_older_release_gets_what_it_understands():
    async def scenario():
        hall = await three()
        hall.versions[1] = 1
        assert await hall.wait(hall.places[3].council.forward(b"a frame", "10.0.0.1", TICKET)) == b"answer"
        [(_, frame)] = hall.forwards
        assert frame[2:4] == b"\0\0", "version 0 of the API"
        assert read_forwarded(0, frame[10:]) == ("10.0.0.1", b"a frame", None)

    run(scenario)


def test_a_request_has_the_same_ticket_at_every_attempt():
    async def scenario():
        hall = await three()
        hall.lost_answers = 1
        assert await hall.wait(hall.places[3].council.forward(b"a frame", "10.0.0.1", TICKET)) == b"answer"
        assert [read_forwarded(1, frame[10:])[2] for _, frame in hall.forwards] == [TICKET, TICKET]

    run(scenario)


def test_a_beat_of_an_unknown_node_is_refused():
    async def scenario():
        hall = await three()
        answer = read_answer(b"\0\0\0\0" + await hall.places[1].council.answer(command_frame(Beat(9, 1, 0))[10:]))
        assert isinstance(answer, Refused)
        assert answer.code == ErrorCode.broker_id_not_registered
        with pytest.raises(ProtocolError):
            await hall.places[1].council.answer(b"junk")

    run(scenario)


def test_addresses_are_read_or_refused():
    assert parse_addresses("a:1, b:2,[::1]:3") == [("a", 1), ("b", 2), ("::1", 3)]
    for bad in ("a", "a:", ":1", "a:x", "a:70000"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_addresses(bad)
