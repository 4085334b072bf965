"""A partition with transactions: markers, the last stable offset, and those who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.partition import Partition
from headrace.broker.waiting import Poll
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.storage.memory import MemoryFiles
from headrace.testing.partitions import flush, open_partition, write


def end(partition: Partition, producer_id: int, *, commit: bool = True, epoch: int = 0) -> int:
    return partition.write_marker(producer_id, epoch, commit=commit, coordinator_epoch=0)


def test_the_last_stable_offset_waits_for_the_marker_to_be_durable() -> None:
    partition = open_partition(durable=True)
    write(partition, b"plain")
    write(partition, b"a", 7)
    assert (partition.high_watermark, partition.last_stable_offset) == (0, 0)
    flush(partition)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
    assert end(partition, 7) == 3
    assert partition.last_stable_offset == 1
    flush(partition)
    assert partition.last_stable_offset == partition.high_watermark == 3


def test_a_partition_knows_which_producers_are_in_a_transaction() -> None:
    partition = open_partition()
    assert not partition.in_transaction(7, 0)
    write(partition, b"a", 7)
    assert partition.in_transaction(7, 0)
    assert not partition.in_transaction(7, 1)
    assert not partition.in_transaction(8, 0)
    end(partition, 7, epoch=1)
    assert not partition.in_transaction(7, 0)
    assert not partition.in_transaction(7, 1)


def test_a_marker_of_an_old_epoch_is_refused() -> None:
    partition = open_partition()
    write(partition, b"a", 7, epoch=2)
    with pytest.raises(ApiError) as caught:
        end(partition, 7, epoch=1)
    assert caught.value.code is ErrorCode.invalid_producer_epoch


def test_who_keeps_pending_records_is_asked_and_told() -> None:
    partition = open_partition()
    told: list[tuple[int, int, bool, int]] = []
    partition.on_marker = lambda p, producer_id, epoch, commit: told.append(
        (producer_id, epoch, commit, p.log.end_offset)
    )
    end(partition, 7, commit=True, epoch=1)
    end(partition, 8, commit=False)
    assert told == [(7, 1, True, 1), (8, 0, False, 2)]

    def not_now() -> None:
        raise ApiError(ErrorCode.coordinator_load_in_progress)

    partition.may_mark = not_now
    with pytest.raises(ApiError):
        end(partition, 9)
    assert len(told) == partition.log.end_offset == 2


def test_a_marker_on_a_failed_log_is_a_storage_error() -> None:
    partition = open_partition()
    partition.fail(StorageError("gone"))
    with pytest.raises(ApiError) as caught:
        end(partition, 7)
    assert caught.value.code is ErrorCode.kafka_storage_error


def waiting(*, committed_only: bool, wanted_bytes: int = 1) -> Poll:
    return Poll(wanted_bytes, committed_only=committed_only)


def is_awake(poll: Poll) -> bool:
    return poll._future.done()


def test_a_reader_of_committed_records_sleeps_until_the_transaction_ends() -> None:
    async def scenario() -> None:
        partition = open_partition()
        everything, committed = waiting(committed_only=False), waiting(committed_only=True)
        partition.watch(everything)
        partition.watch(committed)
        write(partition, b"a", 7)
        assert is_awake(everything)
        assert not is_awake(committed)
        write(partition, b"plain")
        assert not is_awake(committed)
        end(partition, 7)
        assert is_awake(committed)

    asyncio.run(scenario())


def test_a_reader_of_committed_records_is_woken_by_the_end_of_the_first_of_two_transactions() -> None:
    async def scenario() -> None:
        partition = open_partition(durable=True)
        write(partition, b"a", 7)
        write(partition, b"b", 8)
        flush(partition)
        poll = waiting(committed_only=True)
        partition.watch(poll)
        end(partition, 8)
        flush(partition)
        assert not is_awake(poll)
        end(partition, 7)
        assert not is_awake(poll)
        flush(partition)
        assert is_awake(poll)
        assert partition.last_stable_offset == 4

    asyncio.run(scenario())


def test_without_transactions_a_reader_of_committed_records_waits_for_its_bytes() -> None:
    async def scenario() -> None:
        partition = open_partition()
        poll = waiting(committed_only=True, wanted_bytes=100)
        partition.watch(poll)
        write(partition, b"x")
        assert not is_awake(poll)
        write(partition, b"x")
        assert is_awake(poll)

    asyncio.run(scenario())


def test_everything_is_the_same_after_a_restart_at_every_point() -> None:
    for point in range(6):
        files = MemoryFiles()
        partition = open_partition(files, durable=True)
        stable = []
        for step in range(6):
            if step == point:
                flush(partition)
                partition.log.close(clean=step % 2 == 0)
                partition = open_partition(files, durable=True)
            match step:
                case 0 | 1:
                    write(partition, b"a", 7 + step)
                case 2:
                    write(partition, b"p")
                case 3 | 4:
                    end(partition, 11 - step, commit=step == 3)
                case 5:
                    write(partition, b"p")
            flush(partition)
            stable.append(partition.last_stable_offset)
        assert stable == [0, 0, 0, 0, 5, 6], point
        assert partition.log.aborted_between(0, 9) == [(7, 0)]
