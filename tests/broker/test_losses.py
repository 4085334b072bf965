"""What a node says of its lost replicas before it may lead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.commands import Done, OfflineReplicas
from headrace.broker.image import BrokerRecord
from headrace.broker.losses import report_losses
from headrace.core.errors import ApiError, ConfigError, ErrorCode

TOPIC_ID = UUID(int=7)
NODE = BrokerRecord(1, "host", 9092, epoch=4)


class Known:
    def __init__(self, *unsure: tuple[str, int]) -> None:
        self.places = list(unsure)
        self.saves = 0

    def unsure(self) -> list[tuple[str, int]]:
        return self.places

    def sure(self, places: list[tuple[str, int]]) -> None:
        self.places = [place for place in self.places if place not in places]

    async def saved(self) -> None:
        self.saves += 1


class Stage:
    """A node with damaged and unsure places, and a controller with answers."""

    def __init__(self, *answers: Any, damaged: Any = (), unsure: Any = ()) -> None:
        self.known = Known(*unsure)
        lost = tuple((TOPIC_ID, index) for _, index in (*damaged, *unsure))
        self.partitions: Any = SimpleNamespace(lost_replicas=lambda: lost, known=self.known)
        self.controller: Any = SimpleNamespace(applied=self.applied)
        self.answers = list(answers)
        self.asked: list[OfflineReplicas] = []
        self.waited_for: list[int] = []

    async def applied(self, index: int) -> None:
        self.waited_for.append(index)

    async def ask(self, command: OfflineReplicas, *, timeout_s: float) -> Any:
        self.asked.append(command)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def report(self) -> None:
        asyncio.run(report_losses(self.partitions, self, self.controller, NODE))  # type: ignore[arg-type]


def test_lost_replicas_are_reported_before_the_node_goes_on() -> None:
    stage = Stage(Done(9), damaged=[("t", 0)])
    stage.report()
    assert stage.asked == [OfflineReplicas(1, 4, ((TOPIC_ID, 0),))]
    assert stage.waited_for == [9]


def test_what_an_operator_accepted_is_reported_once() -> None:
    stage = Stage(Done(9), unsure=[("t", 0)])
    stage.report()
    assert len(stage.asked) == 1
    assert stage.known.places == [] and stage.known.saves == 1


def test_nothing_is_said_where_nothing_is_lost() -> None:
    stage = Stage()
    stage.report()
    assert stage.asked == []


def test_a_controller_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.losses.PAUSE_S", 0)
    stage = Stage(ApiError(ErrorCode.request_timed_out), Done(9), damaged=[("t", 0)])
    stage.report()
    assert len(stage.asked) == 2


def test_an_older_controller_is_left_to_fence_the_node() -> None:
    stage = Stage(ApiError(ErrorCode.unsupported_version), damaged=[("t", 0)])
    stage.report()


def test_a_restored_directory_waits_for_a_controller_that_understands() -> None:
    stage = Stage(ApiError(ErrorCode.unsupported_version), unsure=[("t", 0)])
    with pytest.raises(ConfigError, match="upgrade"):
        stage.report()
    assert stage.known.places == [("t", 0)]
