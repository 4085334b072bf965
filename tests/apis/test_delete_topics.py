"""DeleteTopics: by name, by id, and what is refused."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.apis.delete_topics import API
from headrace.broker.topics import NewTopic
from headrace.core.errors import ErrorCode

VERSIONS = range(API.versions[0], API.versions[1] + 1)


def request(version, *names):
    return {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}


def codes(answer):
    return [(topic.name, topic.error_code) for topic in answer.responses]


def test_the_versions_are_those_of_kafka():
    assert (API.key, API.versions) == (20, (1, 6))


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_deleted_by_name(admin, version):
    admin.create(NewTopic("a"), NewTopic("b"), NewTopic("__consumer_offsets"))
    answer = admin.call(API, version, **request(version, "a", "absent", "__consumer_offsets", "b", "b"))
    assert codes(answer) == [
        ("a", ErrorCode.none),
        ("absent", ErrorCode.unknown_topic_or_partition),
        ("__consumer_offsets", ErrorCode.invalid_topic_exception),
        ("b", ErrorCode.invalid_request),
    ]
    assert sorted(admin.image.topics) == ["__consumer_offsets", "b"]


def test_topics_are_deleted_by_id(admin):
    admin.create(NewTopic("a"), NewTopic("b"))
    known, stranger = admin.image.topics["a"].topic_id, UUID(int=99)
    b = {"name": "b", "topic_id": admin.image.topics["b"].topic_id}
    answer = admin.call(API, 6, topics=[{"topic_id": known}, {"topic_id": stranger}, b, {}])
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.responses] == [
        ("a", known, ErrorCode.none),
        (None, stranger, ErrorCode.unknown_topic_id),
        ("b", b["topic_id"], ErrorCode.invalid_request),
        (None, None, ErrorCode.invalid_request),
    ]
    assert list(admin.image.topics) == ["b"]


@pytest.mark.parametrize("version", VERSIONS)
def test_deletion_can_be_disabled(make_admin, version):
    admin = make_admin(delete_topics=False)
    admin.create(NewTopic("a"))
    code = ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
    assert codes(admin.call(API, version, **request(version, "a", "b"))) == [("a", code), ("b", code)]
    assert "a" in admin.image.topics
