"""A broker that cannot save its metadata any more serves nobody: what it knows stands still from then on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.app import Node
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode
from headrace.settings import load
from headrace.testing.files import FaultyFiles

SECONDS = 60.0


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_broker_whose_metadata_log_fails_closes_its_doors_and_says_why(
    operation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        files = FaultyFiles()
        flags = {"storage.data_dir": str(tmp_path), "kafka.port": "0", "http.enabled": "false"}
        node = Node(load(flags=flags).settings, files=files)
        try:
            where = await node.start()
            await node.service.topics.create([NewTopic("before", 1, 1)])
            reader, writer = await asyncio.open_connection(where.kafka_host, where.kafka_port)
            files.fail(operation, path=".raft")  # type: ignore[arg-type]
            [outcome] = await asyncio.gather(
                node.service.topics.create([NewTopic("after", 1, 1)]), return_exceptions=True
            )
            assert isinstance(outcome, ApiError) and outcome.code is ErrorCode.kafka_storage_error
            await asyncio.wait_for(node.failed.wait(), SECONDS)
            assert await asyncio.wait_for(reader.read(), SECONDS) == b"", "who was connected is sent away"
            writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection(where.kafka_host, where.kafka_port)
            assert not node.service.ready and any("metadata" in fault for fault in node.service.faults)
        finally:
            await node.stop()
        assert node.failed.is_set()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())
    assert "this node has lost its metadata log and serves nobody" in [r.getMessage() for r in caplog.records]
