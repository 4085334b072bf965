"""DescribeLogDirs: sizes of the partitions that are here."""

from __future__ import annotations

import pytest

from headrace.apis.describe_log_dirs import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode, StorageError

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def sizes(answer):
    [directory] = answer.results
    assert (directory.error_code, directory.log_dir) == (ErrorCode.none, "/data")
    return {topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in directory.topics}


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (35, (1, 5))


@pytest.mark.parametrize("version", VERSIONS)
def test_null_asks_for_every_partition(admin, version):
    admin.create(NewTopic("a", 2), NewTopic("b"))
    assert sizes(admin.call(API, version, topics=None)) == {"a": {0: 0, 1: 100}, "b": {0: 0}}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_here_is_left_out(admin, version):
    admin.create(NewTopic("a", 3))
    asked = [{"topic": "a", "partitions": [1, 7, 1]}, {"topic": "absent", "partitions": [0]}]
    assert sizes(admin.call(API, version, topics=asked)) == {"a": {1: 100}}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_directory_that_has_failed_says_so(admin, version):
    admin.service.partitions.disk_fault = StorageError("syncing failed")
    [directory] = admin.call(API, version, topics=None).results
    assert directory.error_code == ErrorCode.kafka_storage_error
