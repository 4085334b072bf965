"""The metadata log: one list of promises for both kinds, and what the stored one keeps through faults."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest

from headrace.broker.controller import Controller
from headrace.broker.image import ConfigRecord, Image, PartitionRecord, TopicRecord, apply
from headrace.broker.metadata_log import MemoryMetadataLog, StoredMetadataLog
from headrace.core.errors import ApiError, CorruptionError, DiskFailedError, ErrorCode, StorageError
from headrace.storage.memory import MemoryFiles
from headrace.storage.settings import StorageSettings
from headrace.testing.files import FaultyFiles, PowerCutError


class Inline:
    """Workers that work at once; without power nothing more is heard of a disk."""

    async def run(self, work):
        try:
            return work()
        except PowerCutError as error:
            raise DiskFailedError("the power is off") from error


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def stored(files) -> StoredMetadataLog:
    return StoredMetadataLog.open(files, StorageSettings(), Inline(), Clock())


@pytest.fixture(params=["memory", "stored"])
def log(request):
    return MemoryMetadataLog() if request.param == "memory" else stored(MemoryFiles())


def topic(number: int) -> list:
    name = f"t{number}"
    return [TopicRecord(name, UUID(int=number + 1)), PartitionRecord(name, 0, (1,), (1,), 1, 0)]


def test_an_empty_log_has_no_entries(log):
    assert list(log.read_all()) == []


def test_entries_come_back_in_order_with_the_offsets_they_were_given(log):
    async def scenario():
        entries = [b"one", b"", b"three" * 1000, b"\x00\xff"]
        offsets = [log.append(entry) for entry in entries]
        await log.synced(offsets[-1])
        assert offsets == sorted(set(offsets))
        assert list(log.read_all()) == list(zip(offsets, entries, strict=True))

    asyncio.run(scenario())


def test_waiting_for_what_is_synced_already_returns(log):
    async def scenario():
        first, second = log.append(b"one"), log.append(b"two")
        await asyncio.gather(log.synced(second), log.synced(first), log.synced(second))

    asyncio.run(scenario())


def test_nothing_at_or_above_a_deletion_is_forgotten(log):
    async def scenario():
        offsets = [log.append(b"%d" % number) for number in range(10)]
        await log.synced(offsets[-1])
        log.delete_before(offsets[6])
        assert [entry for offset, entry in log.read_all() if offset >= offsets[6]] == [b"6", b"7", b"8", b"9"]
        last = log.append(b"10")
        await log.synced(last)
        assert last > offsets[-1]

    asyncio.run(scenario())


def test_an_entry_larger_than_a_segment_comes_back():
    async def scenario():
        files = MemoryFiles()
        log = stored(files)
        big = bytes(range(256)) * (3 * 4096)
        await log.synced(log.append(big))
        await log.synced(log.append(b"small"))
        assert [entry for _, entry in stored(files).read_all()] == [big, b"small"]

    asyncio.run(scenario())


def test_the_image_survives_a_clean_restart_and_a_kill():
    async def scenario():
        files = FaultyFiles()
        log = stored(files)
        controller = Controller(log)
        for number in range(20):
            await controller.propose(topic(number))
        files = files.killed()
        again = Controller(stored(files))
        assert again.load() == controller.image
        await again.propose(topic(20))

    asyncio.run(scenario())


def test_a_clean_close_leaves_all_entries():
    async def scenario():
        files = MemoryFiles()
        log = stored(files)
        controller = Controller(log)
        await controller.propose(topic(1))
        await controller.close()
        log.close()
        assert Controller(stored(files)).load() == controller.image

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_at_any_moment_keeps_all_that_was_answered_and_nothing_by_halves(seed):
    rng = Random(seed)

    async def scenario():
        files = FaultyFiles()
        controller = Controller(stored(files), snapshot_after=12)
        files.cut_power_at(files.operations + rng.randrange(1, 120))
        answered = Image()
        attempted: list = []
        try:
            for number in range(30):
                attempted = topic(number)
                answered = await controller.propose(attempted)
        except (ApiError, PowerCutError):
            pass
        image = Controller(stored(files.power_cut(rng))).load()
        unanswered = attempted[0].name not in answered.topics
        assert image == answered or (unanswered and image == apply(answered, attempted))

    asyncio.run(scenario())


def test_snapshots_free_the_space_of_what_they_replace():
    async def scenario():
        files = FaultyFiles()
        controller = Controller(stored(files), snapshot_after=50)
        await controller.propose(topic(1))
        value = "x" * 20_000
        for number in range(400):
            await controller.propose([ConfigRecord("topic", "t1", "k", f"{number}{value}")])
        size = sum(len(files.peek(path)) for path in files.paths())
        assert size < 5 * 1024 * 1024  # 8 MB were written
        assert Controller(stored(files.killed())).load() == controller.image

    asyncio.run(scenario())


def test_a_flipped_bit_stops_start_up_and_is_never_cut_away():
    async def scenario():
        files = FaultyFiles()
        controller = Controller(stored(files))
        for number in range(5):
            await controller.propose(topic(number))
        [path] = [path for path in files.paths() if path.endswith(".log")]
        size = len(files.peek(path))
        for position in range(20, size, 7):
            damaged = files.copy()
            damaged.flip(path, position * 8 + 3)
            before = damaged.peek(path)
            try:
                image = Controller(stored(damaged)).load()
            except CorruptionError:
                assert damaged.peek(path) == before
            else:
                assert image == controller.image  # a bit that no checksum covers and no reader looks at

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failing_disk_takes_the_controller_offline(operation):
    async def scenario():
        files = FaultyFiles()
        controller = Controller(stored(files))
        await controller.propose(topic(1))
        files.fail(operation, path=".log")
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
        controller = Controller(stored(files))
        await controller.propose(topic(1))
        files.space_left = 10
        with pytest.raises(ApiError):
            await controller.propose(topic(2))
        files.heal()
        await controller.propose(topic(3))
        assert sorted(controller.image.topics) == ["t1", "t3"]
        assert Controller(stored(files.killed())).load() == controller.image

    asyncio.run(scenario())
