"""A cluster's metadata without disk or sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.configs import Configs
from headrace.broker.image import BrokerRecord, Image
from headrace.broker.topics import Topics
from headrace.settings import Settings
from headrace.testing.metadata import lone_controller


class Cluster:
    """Topics and Configs over a quorum of one."""

    def __init__(self, brokers: int = 1, **broker_settings: Any) -> None:
        defaults = Settings()
        self.settings = replace(defaults, broker=replace(defaults.broker, **broker_settings))
        self.controller = lone_controller()
        self.configs = Configs(self.controller, self.settings)
        ids = count(1)
        self.topics = Topics(self.controller, self.configs, self.settings.broker, lambda: UUID(int=next(ids)))
        self.run(self.controller.propose([BrokerRecord(n, f"host{n}", 9092) for n in range(1, brokers + 1)]))

    @property
    def image(self) -> Image:
        return self.controller.image

    def run(self, work: Awaitable[Any]) -> Any:
        async def scenario() -> Any:
            return await work

        return asyncio.run(scenario())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def three() -> Cluster:
    return Cluster(brokers=3)


@pytest.fixture
def make_cluster() -> type[Cluster]:
    return Cluster
