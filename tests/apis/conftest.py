"""Admin APIs without sockets: a request goes through the wire's own encoder and decoder, and so does the answer."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.apis.api import Api, Context
from headrace.broker.configs import Configs
from headrace.broker.controller import Controller
from headrace.broker.departures import Departures
from headrace.broker.encoded_topics import EncodedTopics
from headrace.broker.image import BrokerRecord, Image, MetadataRecord
from headrace.broker.raft_storage import UnsavedStorage
from headrace.broker.topics import NewTopic, Topics
from headrace.broker.turns import Turns
from headrace.core.errors import ApiError, ErrorCode, StorageError
from headrace.raft.ready import Save
from headrace.settings import Settings
from headrace.testing.metadata import lone_controller
from headrace.wire import messages


class BrokenLog(UnsavedStorage):
    """Fails for good from the moment it is told to."""

    broken = False

    def write(self, saves: Sequence[Save]) -> None:
        if self.broken:
            raise StorageError("the disk is gone")


class ImagePartitions:
    """Every partition of the image, each with a log of 100 bytes for every partition before it."""

    disk_fault: StorageError | None = None

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __iter__(self) -> Iterator[Any]:
        for topic in self._controller.image.topics.values():
            for record in topic.partitions:
                yield self.get(topic.name, record.index)

    def replica(self, topic: str, index: int) -> Any:
        return None if self._controller.image.partition(topic, index) is None else self.get(topic, index)

    def get(self, topic: str, index: int) -> Any:
        if self._controller.image.partition(topic, index) is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition)
        log = SimpleNamespace(size_bytes=100 * index, end_offset=index)
        return SimpleNamespace(topic=topic, index=index, log=log, high_watermark=index)


class AdminService:
    """The part of a broker's service that the admin APIs use."""

    def __init__(self, brokers: int = 1, **broker_settings: Any) -> None:
        defaults = Settings()
        self.settings = replace(defaults, broker=replace(defaults.broker, **broker_settings))
        self.log = BrokenLog()
        self.controller = lone_controller(self.log)
        self.configs = Configs(self.controller, self.settings)
        ids = count(1)
        self.topics = Topics(self.controller, self.configs, self.settings.broker, lambda: UUID(int=next(ids)))
        self.cluster_id = "a-cluster"
        self.controller_id = 1
        self.data_dir = "/data"
        self.departures = Departures()
        self.encoded_topics = EncodedTopics()
        self.turns = Turns(time.monotonic)
        self.node = BrokerRecord(1, "host1", 9092, "rack1")
        self.partitions = ImagePartitions(self.controller)
        others = [BrokerRecord(n, f"host{n}", 9092) for n in range(2, brokers + 1)]
        run(self.controller.propose([self.node, *others]))

    @property
    def image(self) -> Image:
        return self.controller.image


class Admin:
    """A client of one service."""

    def __init__(self, **options: Any) -> None:
        self.service = AdminService(**options)

    @property
    def image(self) -> Image:
        return self.service.image

    def create(self, *topics: NewTopic) -> None:
        """Make topics, internal ones too, without going through an API."""
        outcomes = run(self.service.topics.ensure(topics))
        assert [outcome.error for outcome in outcomes] == [None] * len(topics)

    def propose(self, *records: MetadataRecord) -> None:
        run(self.service.controller.propose(records))

    def call(self, api: Api, version: int, *, peer: int | None = None, **fields: Any) -> Any:
        """The decoded answer to a request with `fields`; what is left out gets the schema's default."""
        body = messages.encode_request(api.key, version, fields)
        request = messages.decode_request(api.key, version, body)
        context = Context(self.service, version, "a-client", "127.0.0.1", peer)  # type: ignore[arg-type]
        try:
            answer = api.handle(context, request)
            if inspect.isawaitable(answer):
                answer = run(answer)
        except ApiError as error:
            assert api.on_error is not None, f"{api.name} raised {error!r} and has no answer for it"
            answer = api.on_error(context, request, error)
        assert isinstance(answer, dict)
        encoded = messages.encode_answer(api.key, version, answer)
        return messages.decode_response(api.key, version, encoded)


def run(work: Awaitable[Any]) -> Any:
    async def scenario() -> Any:
        return await work

    return asyncio.run(scenario())


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def make_admin() -> type[Admin]:
    return Admin
