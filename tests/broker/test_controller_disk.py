"""The controller over files: what it keeps through kills, power cuts, bit flips and failing disks."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest

from headrace.broker.controller import SNAPSHOT_AFTER, Controller
from headrace.broker.image import ConfigRecord, Image, PartitionRecord, TopicRecord, apply
from headrace.broker.raft_storage import RaftStorage
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError
from headrace.storage.memory import MemoryFiles
from headrace.testing.files import FaultyFiles, PowerCutError
from headrace.testing.metadata import lone_controller


class Inline:
    """Workers that work at once; without power nothing more is heard of a disk."""

    async def run(self, work):
        try:
            return work()
        except PowerCutError as error:
            raise DiskFailedError("the power is off") from error


def stored(files, snapshot_after: int = SNAPSHOT_AFTER) -> Controller:
    return lone_controller(RaftStorage.open(files), workers=Inline(), snapshot_after=snapshot_after)


def topic(number: int) -> list:
    name = f"t{number}"
    return [TopicRecord(name, UUID(int=number + 1)), PartitionRecord(name, 0, (1,), (1,), 1, 0)]


def test_the_image_survives_a_kill():
    async def scenario():
        files = FaultyFiles()
        controller = stored(files)
        for number in range(20):
            await controller.propose(topic(number))
        again = stored(files.killed())
        assert again.image == controller.image
        await again.propose(topic(20))

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["failure", "close"])
def test_nobody_waits_for_an_index_that_will_never_be_applied(end):
    async def scenario():
        files = FaultyFiles()
        controller = stored(files)
        waiting = asyncio.create_task(controller.applied(1000))
        await asyncio.sleep(0)
        if end == "failure":
            files.fail("sync")
            with pytest.raises(ApiError):
                await controller.propose(topic(1))
        else:
            await controller.close()
        async with asyncio.timeout(60):
            with pytest.raises(ApiError):
                await waiting

    asyncio.run(scenario())


def test_a_clean_close_leaves_everything():
    async def scenario():
        files = MemoryFiles()
        storage = RaftStorage.open(files)
        controller = lone_controller(storage)
        await controller.propose(topic(1))
        await controller.close()
        storage.close()
        assert stored(files).image == controller.image

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_at_any_moment_keeps_all_that_was_answered_and_nothing_by_halves(seed):
    rng = Random(seed)

    async def scenario():
        files = FaultyFiles()
        controller = stored(files, snapshot_after=12)
        files.cut_power_at(files.operations + rng.randrange(1, 120))
        answered = Image()
        attempted: list = []
        try:
            for number in range(30):
                attempted = topic(number)
                answered = await controller.propose(attempted)
        except (ApiError, PowerCutError):
            pass
        image = stored(files.power_cut(rng)).image
        unanswered = attempted[0].name not in answered.topics
        assert image == answered or (unanswered and image == apply(answered, attempted))

    asyncio.run(scenario())


def test_snapshots_free_the_space_of_what_they_replace():
    async def scenario():
        files = FaultyFiles()
        controller = stored(files, snapshot_after=50)
        await controller.propose(topic(1))
        value = "x" * 20_000
        for number in range(400):
            await controller.propose([ConfigRecord("topic", "t1", "k", f"{number}{value}")])
        size = sum(len(files.peek(path)) for path in files.paths())
        assert size < 2 * 1024 * 1024  # 8 MB were written
        assert stored(files.killed()).image == controller.image

    asyncio.run(scenario())


def test_a_flipped_bit_stops_start_up_and_is_never_cut_away():
    async def scenario():
        files = FaultyFiles()
        controller = stored(files)
        for number in range(5):
            await controller.propose(topic(number))
        [path] = [path for path in files.paths() if path.endswith(".raft")]
        for position in range(0, len(files.peek(path)), 7):
            damaged = files.copy()
            damaged.flip(path, position * 8 + 3)
            before = damaged.peek(path)
            try:
                image = stored(damaged).image
            except CorruptionError:
                assert damaged.peek(path) == before
            else:
                assert image == controller.image  # in the last mark

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failing_disk_takes_the_controller_offline(operation):
    async def scenario():
        files = FaultyFiles()
        controller = stored(files)
        await controller.propose(topic(1))
        files.fail(operation, path=".raft")
        for number in (2, 3):
            with pytest.raises(ApiError) as refused:
                await controller.propose(topic(number))
            assert refused.value.code is ErrorCode.kafka_storage_error
        assert list(controller.image.topics) == ["t1"]
        assert isinstance(controller.fault, StorageError)

    asyncio.run(scenario())


def test_a_full_disk_passes():
    async def scenario():
        files = FaultyFiles()
        controller = stored(files)
        await controller.propose(topic(1))
        files.space_left = 10
        with pytest.raises(ApiError):
            await controller.propose(topic(2))
        files.heal()
        await controller.propose(topic(3))
        assert sorted(controller.image.topics) == ["t1", "t3"]
        assert stored(files.killed()).image == controller.image

    asyncio.run(scenario())
