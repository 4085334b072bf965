"""DescribeQuorum and UpdateFeatures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.apis import describe_quorum, update_features
from headrace.core.errors import ErrorCode

QUORUM = describe_quorum.API
FEATURES = update_features.API


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_of_one_is_described(admin, version):
    admin.service.clock = SimpleNamespace(now_ms=lambda: 5)
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = admin.call(QUORUM, version, topics=asked)
    [partition] = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (ErrorCode.none, ErrorCode.none)
    assert partition.leader_id == 1
    assert [voter.replica_id for voter in partition.current_voters] == [1]
    assert partition.high_watermark == partition.current_voters[0].log_end_offset > 0
    assert partition.observers == ()


def test_only_the_metadata_has_a_quorum(admin):
    answer = admin.call(QUORUM, 2, topics=[{"topic_name": "orders", "partitions": [{"partition_index": 0}]}])
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


def update(admin, version, feature, level):
    fields = {"feature": feature, "max_version_level": level, "allow_downgrade": False, "upgrade_type": 1}
    return admin.call(FEATURES, version, feature_updates=[fields], timeout=1000)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_level_in_force_is_granted_and_no_other(admin, version):
    assert update(admin, version, "group.version", 1).error_code is ErrorCode.none
    for feature, level in (("group.version", 2), ("no.such", 1)):
        answer = update(admin, version, feature, level)
        code = answer.error_code if version == 2 else answer.results[0].error_code
        assert code is ErrorCode.invalid_update_version
