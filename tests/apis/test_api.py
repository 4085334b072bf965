"""What the API modules have in common."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.apis.api import Context, in_turns
from headrace.broker.turns import Turns
from headrace.core.errors import ProtocolError
from headrace.wire.messages import decode_request, encode_request

DESCRIBE_GROUPS = 15


class Watch:
    """A clock that moves by a millisecond whenever somebody looks at it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds


def context_with(turns: Turns) -> Any:
    return Context(SimpleNamespace(turns=turns), 0, "", "")  # type: ignore[arg-type]


def test_a_long_list_leaves_turns_to_others():
    async def test() -> int:
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        context = context_with(Turns(Watch()))
        assert [item async for item in in_turns(context, range(1000), 10)] == list(range(1000))
        task.cancel()
        return passes

    assert asyncio.run(test()) >= 45


def test_a_list_that_takes_no_time_is_gone_through_without_a_pause():
    async def test(number: int, turns: Turns) -> bool:
        other = asyncio.create_task(asyncio.sleep(0))
        assert [item async for item in in_turns(context_with(turns), range(number), 10)] == list(range(number))
        return other.done()

    assert asyncio.run(test(1000, Turns(lambda: 0.0))) is False
    assert asyncio.run(test(9, Turns(Watch()))) is False, "a short list is not worth a look at the clock"


@pytest.mark.parametrize("version", [0, 5])
def test_a_request_names_so_many_things_and_no_more(version: int):
    """What is done for each of them holds up everybody else: thousands must be enough."""
    decode_request(DESCRIBE_GROUPS, version, encode_request(DESCRIBE_GROUPS, version, {"groups": ["g"] * 50_000}))
    with pytest.raises(ProtocolError):
        decode_request(DESCRIBE_GROUPS, version, encode_request(DESCRIBE_GROUPS, version, {"groups": ["g"] * 50_001}))
