"""A log that cannot be opened for a passing reason is opened when the reason has passed, without a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headrace.app import Node
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, DiskFullError, ErrorCode, PassingError
from headrace.settings import Settings
from headrace.testing.files import FaultyFile, FaultyFiles


class ScarceFiles(FaultyFiles):
    """Files that cannot be opened while `lack` is set."""

    lack: PassingError | None = None

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if self.lack is not None and "/late-" in path:
            raise self.lack
        return super().open(path, create=create)


def quiet() -> Settings:
    settings = Settings()
    return replace(settings, kafka=replace(settings.kafka, port=0), http=replace(settings.http, enabled=False))


@pytest.mark.parametrize("lack", [PassingError("no descriptor is left"), DiskFullError("no space is left")], ids=str)
def test_a_partition_made_while_there_was_nothing_left_comes_online_by_itself(lack: PassingError):
    async def scenario() -> None:
        files = ScarceFiles()
        node = Node(quiet(), files=files)
        await node.start()
        try:
            partitions = node.service.partitions
            files.lack = lack
            await node.service.topics.create([NewTopic("late", 2, 1)])
            await partitions.settled()
            with pytest.raises(ApiError) as refused:
                partitions.get("late", 0)
            assert refused.value.code is ErrorCode.kafka_storage_error
            assert len(node.service.faults) == 2
            online = asyncio.Event()
            partitions.watchers.append(lambda partition: online.set() if len(node.service.faults) == 0 else None)
            files.lack = None
            async with asyncio.timeout(60):
                await online.wait()
            assert [partitions.get("late", index).leads for index in (0, 1)] == [True, True]
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_a_topic_that_is_deleted_while_its_logs_cannot_be_opened_is_forgotten():
    async def scenario() -> None:
        files = ScarceFiles()
        node = Node(quiet(), files=files)
        await node.start()
        try:
            files.lack = PassingError("no descriptor is left")
            await node.service.topics.create([NewTopic("late", 1, 1)])
            await node.service.partitions.settled()
            await node.service.topics.delete([("late", None)])
            assert node.service.faults == []
        finally:
            await node.stop()

    asyncio.run(scenario())
