"""A registration that is said twice, or heard late, changes nothing."""

from __future__ import annotations

import pytest

from headrace.broker.commands import Register
from headrace.broker.decisions import Standard, register
from headrace.broker.image import Image, apply
from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.directory import count_start
from headrace.storage.memory import MemoryFiles


def after(image: Image, start: int) -> Image:
    return apply(image, register(image, Register(2, "h", 9092, None, "d", True, start), Standard()))


def test_a_start_is_registered_once_however_often_it_is_said() -> None:
    image = after(Image(), 3)
    assert after(image, 3) == image and image.brokers[2].epoch == 1
    assert after(image, 4).brokers[2].epoch == 2


def test_an_older_start_does_not_replace_the_one_that_lives() -> None:
    image = after(Image(), 4)
    with pytest.raises(ApiError) as refused:
        after(image, 3)
    assert refused.value.code is ErrorCode.stale_broker_epoch


def test_starts_are_counted_on_the_disk() -> None:
    files = MemoryFiles()
    assert [count_start(files) for _ in range(3)] == [1, 2, 3]
