"""What the API modules have in common."""

from __future__ import annotations

import asyncio

import pytest

from headrace.apis.api import in_turns
from headrace.core.errors import ProtocolError
from headrace.wire.messages import decode_request, encode_request

DESCRIBE_GROUPS = 15


def test_a_long_list_leaves_turns_to_others():
    async def test() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert [item async for item in in_turns(range(1000), 10)] == list(range(1000))
        task.cancel()
        return turns

    assert asyncio.run(test()) >= 99


def test_a_short_list_is_gone_through_without_a_pause():
    async def test() -> bool:
        other = asyncio.create_task(asyncio.sleep(0))
        assert [item async for item in in_turns(range(9), 10)] == list(range(9))
        return other.done()

    assert asyncio.run(test()) is False


@pytest.mark.parametrize("version", [0, 5])
def test_a_request_names_so_many_things_and_no_more(version: int):
    """What is done for each of them holds up everybody else: thousands must be enough."""
    decode_request(DESCRIBE_GROUPS, version, encode_request(DESCRIBE_GROUPS, version, {"groups": ["g"] * 50_000}))
    with pytest.raises(ProtocolError):
        decode_request(DESCRIBE_GROUPS, version, encode_request(DESCRIBE_GROUPS, version, {"groups": ["g"] * 50_001}))
