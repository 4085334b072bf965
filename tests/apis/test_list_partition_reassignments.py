"""ListPartitionReassignments: nothing moves on one node."""

from __future__ import annotations

import pytest

from headrace.apis.list_partition_reassignments import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode


@pytest.mark.parametrize("asked", [None, [], [{"name": "orders", "partition_indexes": [0]}]])
def test_there_are_no_reassignments(admin, asked):
    admin.create(NewTopic("orders"))
    answer = admin.call(API, 0, topics=asked)
    assert (API.key, API.versions) == (46, (0, 0))
    assert answer.error_code is ErrorCode.none
    assert answer.topics == ()
