"""ListConfigResources: which resources have configs."""

from __future__ import annotations

import pytest

from headrace.apis.list_config_resources import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def resources(answer):
    assert answer.error_code is ErrorCode.none
    return {(resource.resource_type, resource.resource_name) for resource in answer.config_resources}


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (74, (0, 1))


def test_version_0_lists_client_metrics_and_there_are_none(admin):
    admin.create(NewTopic("orders"))
    assert admin.call(API, 0).config_resources == ()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], {(TOPIC, "orders"), (BROKER, "1"), (BROKER_LOGGER, "1")}),
        ([TOPIC], {(TOPIC, "orders")}),
        ([BROKER, BROKER], {(BROKER, "1")}),
        ([CLIENT_METRICS, GROUP], set()),
    ],
)
def test_version_1_lists_what_is_asked_for(admin, asked, expected):
    admin.create(NewTopic("orders"))
    assert resources(admin.call(API, 1, resource_types=asked)) == expected


def test_an_unknown_type_is_refused(admin):
    assert admin.call(API, 1, resource_types=[TOPIC, 99]).error_code is ErrorCode.unsupported_version
