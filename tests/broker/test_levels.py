"""Two releases in one cluster: nothing is written that an old node cannot read, or given to one that cannot.

The newer release is this one, with a kind of record that the older one is said not to know.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headrace.broker import attendance, joining, levels
from headrace.broker.commands import Beat, Join, ProducerIdsTaken, Refused, Register, TakeProducerIds
from headrace.broker.controller import _decoded
from headrace.broker.council import read_answer
from headrace.broker.image import BrokerRecord, Image, MetadataRecord, ProducerIdsRecord, apply, records_of
from headrace.core.errors import ApiError, ConfigError, CorruptionError, ErrorCode, ProtocolError
from tests.broker.test_council import Hall, run, three

OLD, NEW = 1, 2


@pytest.fixture
def upgrade(monkeypatch):
    """Makes this process a newer release, or the older one again."""
    monkeypatch.setitem(levels.LEVEL_OF, ProducerIdsRecord, NEW)

    def to(level: int) -> None:
        monkeypatch.setattr(attendance, "LEVEL", level)
        monkeypatch.setattr(joining, "LEVEL", level)

    to(OLD)
    return to


def known(hall: Hall) -> dict[int, int]:
    return {node.node_id: node.level for node in hall.leader.image.brokers.values()}


def test_a_newer_record_waits_until_the_last_node_is_upgraded(upgrade):
    async def scenario():
        hall = await three()
        upgrade(NEW)
        for node in (1, 2):
            await hall.register(node)
        with pytest.raises(ApiError, match="node 3 runs an older release") as refused:
            await hall.wait(hall.places[2].council.ask(TakeProducerIds(10)))
        assert refused.value.code is ErrorCode.unsupported_version
        assert hall.leader.image.level == OLD
        await hall.register(3)
        assert isinstance(await hall.wait(hall.places[2].council.ask(TakeProducerIds(10))), ProducerIdsTaken)
        assert hall.leader.image.level == NEW

    run(scenario)


def test_a_node_goes_back_until_a_newer_record_is_written_and_not_afterwards(upgrade):
    async def scenario():
        hall = await three()
        upgrade(NEW)
        for node in (1, 2, 3):
            await hall.register(node)
        upgrade(OLD)
        await hall.register(3)
        assert known(hall) == {1: NEW, 2: NEW, 3: OLD}
        upgrade(NEW)
        await hall.register(3)
        await hall.wait(hall.leader.council.ask(TakeProducerIds(10)))
        upgrade(OLD)
        with pytest.raises(ApiError, match="node 3 runs a release of level 1, and .* is of level 2"):
            await hall.register(3)
        with pytest.raises(ConfigError, match="start it with the release that the others run"):
            await hall.arrive(4, seed=2)
        assert 4 not in hall.leader.controller.quorum.membership.members, "it gets none of the log"

    run(scenario)


def test_what_an_older_leader_did_not_write_down_the_next_beat_tells(upgrade):
    async def scenario():
        hall = await three()
        upgrade(NEW)
        for node in (1, 2, 3):
            await hall.register(node)
        before = hall.leader.image.brokers[2]
        await hall.wait(hall.leader.controller.commit([replace(before, level=OLD)]))
        assert known(hall)[2] == OLD
        await hall.wait(hall.places[2].attendance.beat())
        assert hall.leader.image.brokers[2] == before

    run(scenario)


def test_a_snapshot_has_the_level_of_what_is_in_it(upgrade):
    image = apply(Image(), [BrokerRecord(1, "h", 1, level=NEW), ProducerIdsRecord(5)])
    assert image.level == NEW
    assert apply(Image(), records_of(image)).level == NEW
    assert apply(Image(), [BrokerRecord(1, "h", 1, level=NEW)]).level == OLD


@pytest.mark.parametrize("kind", [Join, Register, Beat, BrokerRecord])
def test_what_an_older_release_has_written_has_the_first_level(kind):
    """And what a newer one has written can be read by the older: it passes over what comes after the last field."""
    fields = {Join: ("h", 1, "d"), Register: ("h", 1, None, "d", True), Beat: (1, 7), BrokerRecord: ("h", 1)}
    whole = kind(4, *fields[kind], level=NEW)
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(whole))
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(raw[:-1]), type=kind)
    assert old == replace(whole, level=OLD)
    newer = msgspec.msgpack.encode([*raw, "a field of the future"])
    assert msgspec.msgpack.decode(newer, type=kind) == whole


def test_a_command_of_a_newer_release_is_refused_with_a_sentence_and_the_link_lives():
    async def scenario():
        hall = await three()
        command = msgspec.msgpack.encode((True, ["shuffle-everything", 1, 2]))
        answer = read_answer(b"\0\0\0\0" + await hall.leader.council.answer(command))
        assert isinstance(answer, Refused)
        assert answer.code == ErrorCode.unsupported_version
        assert "does not know 'shuffle-everything'" in answer.message
        for body in (b"\xc1", msgspec.msgpack.encode((True, ["beat", "x"])), msgspec.msgpack.encode((True, []))):
            with pytest.raises(ProtocolError):
                await hall.leader.council.answer(body)

    run(scenario)


def test_a_log_of_a_newer_release_is_not_read_and_the_sentence_says_what_to_do():
    entry = msgspec.msgpack.encode([1, False, [["of-the-future", 1]]])
    with pytest.raises(CorruptionError, match="written by a newer release, start this node with that"):
        _decoded(entry, 7)


def test_every_kind_of_record_has_a_level_that_this_release_can_read():
    for kind in MetadataRecord.__args__:
        assert levels.LEVEL_OF.get(kind, levels.FIRST) <= levels.LEVEL
