"""A registration that is said twice, or heard late, changes nothing."""

from __future__ import annotations

import pytest

from headrace.broker.commands import Joined, Register
from headrace.broker.decisions import Standard, register
from headrace.broker.image import Image, apply
from headrace.broker.joining import JOINED_PATH, remember, remembered
from headrace.core.errors import ApiError, ErrorCode
from headrace.storage.directory import last_start, store_start
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
    assert last_start(files) == 0
    store_start(files, 3)
    assert last_start(files) == 3


def test_a_node_that_joined_remembers_the_others_before_it_has_any_log() -> None:
    files = MemoryFiles()
    assert remembered(files) == {}
    remember(files, Joined("c", 1, {1: ("h1", 9092), 3: ("h3", 9093)}))
    assert remembered(files) == {1: ("h1", 9092), 3: ("h3", 9093)}
    files.store(JOINED_PATH, b"of an older release")
    assert remembered(files) == {}
