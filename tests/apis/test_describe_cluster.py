"""DescribeCluster: brokers, endpoint types, authorised operations."""

from __future__ import annotations

import pytest

from headrace.apis.describe_cluster import API
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (60, (0, 2))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", [True, False])
def test_the_cluster_is_described(make_admin, version, asked):
    admin = make_admin(brokers=2)
    fields = {"include_fenced_brokers": True} if version >= 2 else {}
    answer = admin.call(API, version, include_cluster_authorized_operations=asked, **fields)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (ErrorCode.none, "a-cluster", 1)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (1, "host1", 9092, "rack1"),
        (2, "host2", 9092, None),
    ]
    assert answer.cluster_authorized_operations == (8096 if asked else -(2**31))
    if version >= 1:
        assert answer.endpoint_type == 1
    if version >= 2:
        assert not any(broker.is_fenced for broker in answer.brokers)


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (7, ErrorCode.unsupported_endpoint_type)],
)
def test_other_endpoints_are_not_served_here(admin, version, endpoint_type, code):
    answer = admin.call(API, version, endpoint_type=endpoint_type)
    assert answer.error_code is code
    assert answer.error_message
    assert answer.brokers == ()
