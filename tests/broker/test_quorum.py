"""Several drivers in one loop: they elect, replicate, survive each other, and agree."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from headrace.broker.image import ConfigRecord, ProducerIdsRecord, TopicRecord
from headrace.broker.post import Post, pack, unpack
from headrace.core.errors import ApiError, ErrorCode, LinkError, ProtocolError
from headrace.raft.membership import Change, ChangeKind
from headrace.raft.messages import Heartbeat, InstallSnapshot
from headrace.raft.records import Membership, Snapshot
from headrace.testing.quorum import Assembly


def topic(name: str, number: int = 1) -> list:
    return [TopicRecord(name, UUID(int=number))]


async def waiting(assembly: Assembly, work):
    """A coroutine's result, while messages are delivered and time passes."""
    task = asyncio.ensure_future(work)
    for _ in range(100):
        await assembly.settle()
        if task.done():
            return task.result()
        await assembly.tick()
    raise AssertionError("it never ended")


async def three(**options) -> Assembly:
    assembly = Assembly(**options)
    founder = assembly.add(1, found=True)
    for node in (2, 3):
        assembly.add(node)
        await waiting(assembly, founder.quorum.change(Change(ChangeKind.ADD_LEARNER, node)))
        await assembly.tick(3)
        await waiting(assembly, founder.quorum.change(Change(ChangeKind.PROMOTE, node)))
    await assembly.tick(3)
    return assembly


def test_nodes_join_a_founder_and_learn_what_was_decided_before():
    async def scenario():
        assembly = Assembly()
        founder = assembly.add(1, found=True)
        await founder.propose(topic("before"))
        learner = assembly.add(2)
        assert not learner.quorum.belongs
        await waiting(assembly, founder.quorum.change(Change(ChangeKind.ADD_LEARNER, 2)))
        await assembly.tick(2)
        assert learner.image == founder.image
        assert learner.quorum.leader == 1
        assert learner.quorum.membership == Membership((1,), (2,))

    asyncio.run(scenario())


def test_what_the_leader_decides_everybody_applies():
    async def scenario():
        assembly = await three()
        seen = []
        assembly.nodes[3].subscribe(lambda old, new: seen.append(sorted(new.topics)))
        await waiting(assembly, assembly.leader.propose(topic("orders")))
        await assembly.tick(2)
        assert all("orders" in node.image.topics for node in assembly.nodes.values())
        assert seen == [["orders"]]

    asyncio.run(scenario())


def test_only_the_leader_takes_proposals():
    async def scenario():
        assembly = await three()
        for node_id in (2, 3):
            with pytest.raises(ApiError) as refused:
                await assembly.nodes[node_id].propose(topic("orders"))
            assert refused.value.code is ErrorCode.not_controller

    asyncio.run(scenario())


def test_nothing_is_answered_without_a_majority():
    async def scenario():
        assembly = await three()
        leader = assembly.leader
        assembly.down |= {2, 3}
        task = asyncio.ensure_future(leader.propose(topic("orders")))
        await assembly.tick(2)
        assert not task.done()
        assert "orders" not in leader.image.topics
        await assembly.tick(30)  # it hears no majority and steps down
        with pytest.raises(ApiError) as refused:
            await task
        assert refused.value.code is ErrorCode.not_controller
        assert not leader.leads
        assert leader.proposed == leader.image

    asyncio.run(scenario())


def test_another_node_leads_when_the_leader_is_gone_and_nothing_is_lost():
    async def scenario():
        assembly = await three()
        await waiting(assembly, assembly.leader.propose(topic("orders")))
        standings = []
        for node in (2, 3):
            assembly.nodes[node].watch(lambda standing: standings.append(standing.role.value))
        assembly.down.add(1)
        leader = await assembly.elect()
        assert leader.quorum.node_id in (2, 3)
        assert "orders" in leader.image.topics
        assert "leader" in standings
        await waiting(assembly, leader.propose(topic("more", 2)))
        again = assembly.add(1)
        await assembly.tick(30)
        assert again.image == leader.image
        assert not again.leads

    asyncio.run(scenario())


def test_a_new_leader_decides_only_when_it_has_applied_all_that_came_before():
    async def scenario():
        assembly = await three()
        await waiting(assembly, assembly.leader.propose([ProducerIdsRecord(7)]))
        assembly.down.add(1)
        leader = await assembly.elect()
        assert leader.leads
        assert leader.proposed.next_producer_id == 7

    asyncio.run(scenario())


def test_what_was_not_committed_is_refused_when_another_leader_decides_otherwise():
    async def scenario():
        assembly = await three()
        old = assembly.leader
        assembly.down.add(1)
        lost = asyncio.ensure_future(old.propose(topic("lost")))
        await assembly.settle()
        leader = await assembly.elect()
        await waiting(assembly, leader.propose(topic("kept", 2)))
        assembly.down.discard(1)
        await assembly.tick(30)
        with pytest.raises(ApiError):
            await lost
        assert list(old.image.topics) == ["kept"]
        assert old.image == leader.image

    asyncio.run(scenario())


def test_a_node_far_behind_gets_a_snapshot():
    async def scenario():
        assembly = await three(snapshot_after=10)
        await waiting(assembly, assembly.leader.propose(topic("orders")))
        assembly.down.add(3)
        for number in range(50):
            await waiting(
                assembly, assembly.leader.propose([ConfigRecord("topic", "orders", "retention.ms", str(number))])
            )
        assert assembly.storages[1].snapshot().index > 0
        assembly.down.discard(3)
        await assembly.tick(60)
        assert assembly.nodes[3].image == assembly.leader.image
        assert assembly.storages[3].snapshot().index > 0
        assert assembly.nodes[3].applied_index == assembly.leader.applied_index

    asyncio.run(scenario())


def test_a_read_waits_until_the_node_has_applied_what_was_decided():
    async def scenario():
        assembly = await three()
        await waiting(assembly, assembly.leader.propose(topic("orders")))
        index = await waiting(assembly, assembly.nodes[2].quorum.read())
        assert assembly.nodes[2].applied_index >= index
        assert "orders" in assembly.nodes[2].image.topics

    asyncio.run(scenario())


def test_a_read_is_refused_where_no_leader_is_known():
    async def scenario():
        assembly = await three()
        assembly.down |= {1, 2}
        await assembly.tick(40)
        with pytest.raises(ApiError) as refused:
            await assembly.nodes[3].quorum.read()
        assert refused.value.code is ErrorCode.not_controller

    asyncio.run(scenario())


def test_leadership_is_handed_over():
    async def scenario():
        assembly = await three()
        assembly.leader.quorum.transfer(2)
        await assembly.tick(3)
        assert assembly.leader is assembly.nodes[2]

    asyncio.run(scenario())


def test_a_node_whose_disk_fails_is_silent_and_the_others_go_on():
    async def scenario():
        assembly = await three()

        def broken(saves):
            raise OSError("gone")

        assembly.storages[1].write = broken
        with pytest.raises(ApiError) as refused:
            await waiting(assembly, assembly.leader.propose(topic("orders")))
        assert refused.value.code is ErrorCode.kafka_storage_error
        assert assembly.nodes[1].fault is not None
        leader = await assembly.elect()
        assert leader.quorum.node_id != 1

    asyncio.run(scenario())


def test_messages_survive_the_wire():
    messages = [Heartbeat(1, 2, 3, 4, 5), InstallSnapshot(1, 2, 3, Snapshot(9, 2, Membership((1,)), b"state"))]
    assert unpack(pack(messages)) == messages
    for junk in (b"", b"\x91\xc4\x01\x02", b"\xff"):
        with pytest.raises(ProtocolError):
            unpack(junk)


class Wire:
    """Links that answer when told, or never."""

    def __init__(self) -> None:
        self.sent: list = []
        self.answers: list[asyncio.Future] = []

    async def call(self, node_id, frame, *, lane, timeout_s):
        self.sent.append((node_id, unpack(frame[10:])))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


def test_what_comes_while_a_message_is_under_way_goes_with_the_next_one():
    async def scenario():
        wire = Wire()
        post = Post(wire, lambda node, lost: None)
        beats = [Heartbeat(1, 2, 3, 0, number) for number in range(4)]
        post.send(2, beats[:1])
        await asyncio.sleep(0)
        post.send(2, beats[1:2])
        post.send(2, beats[2:])
        await asyncio.sleep(0)
        wire.answers[0].set_result(b"")
        for _ in range(3):
            await asyncio.sleep(0)
        assert wire.sent == [(2, beats[:1]), (2, beats[1:])]
        await post.close()

    asyncio.run(scenario())


def test_what_waits_for_a_silent_node_is_dropped_and_reported():
    async def scenario():
        wire, reports = Wire(), []
        post = Post(wire, lambda node, lost: reports.append((node, list(lost))))
        snapshot = InstallSnapshot(1, 2, 3, Snapshot(9, 2, Membership((1,)), b"state"))
        post.send(2, [snapshot])
        await asyncio.sleep(0)
        post.send(2, [Heartbeat(1, 2, 3, 0, 0)])
        wire.answers[0].set_exception(LinkError("silence"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert reports == [(2, [snapshot])]
        assert len(wire.sent) == 1
        post.send(2, [Heartbeat(1, 2, 3, 0, 1)])
        await asyncio.sleep(0)
        assert len(wire.sent) == 2
        await post.close()

    asyncio.run(scenario())
