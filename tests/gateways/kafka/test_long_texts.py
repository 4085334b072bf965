"""Long texts: Kafka takes none above 32,767 bytes, in any version, since older versions could not tell them again."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer, frame, header, payload
from headrace.wire.messages import encode_request

LONGEST = "x" * 0x7FFF
JOIN_GROUP, DESCRIBE_GROUPS, LIST_GROUPS, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 11, 15, 16, 19, 44


def joining(group: str, member_id: str = "", **others: Any) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": b""}]
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
    return {
        "group_id": group,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": protocols,
        **timeouts,
        **others,
    }


@pytest.mark.parametrize("field", ["protocol_type", "group_instance_id"])
def test_a_text_that_older_versions_cannot_tell_closes_the_connection(peer: Peer, field: str):
    """Were it taken, ListGroups and DescribeGroups would fail for everyone who asks in an older version."""
    peer.send_bytes(frame(payload(JOIN_GROUP, 7, joining("poisoned", **{field: LONGEST + "x"}))))
    assert peer.is_closed()


@pytest.mark.parametrize("others", [{"protocol_type": LONGEST}, {"group_instance_id": LONGEST}])
def test_what_is_taken_can_be_told_in_every_version(peer: Peer, others: dict[str, str]):
    group = next(iter(others))
    joined = peer.call(JOIN_GROUP, 7, joining(group, **others))
    if joined.error_code == ErrorCode.member_id_required:
        joined = peer.call(JOIN_GROUP, 7, joining(group, joined.member_id, **others))
    assert joined.error_code == ErrorCode.none
    for version in range(6):
        found = peer.call(DESCRIBE_GROUPS, version, {"groups": [group]}).groups[0]
        assert found.members[0].member_id == joined.member_id
    for version in range(6):
        assert group in [row.group_id for row in peer.call(LIST_GROUPS, version).groups]


def test_a_long_client_id_gets_a_member_id_that_can_be_told(peer: Peer):
    body = encode_request(JOIN_GROUP, 4, joining("long-client"))
    peer.send_bytes(frame(header(JOIN_GROUP, 4, 7, client_id=LONGEST) + body))
    assert peer.receive(JOIN_GROUP, 4, 7).error_code == ErrorCode.member_id_required


@pytest.mark.parametrize(("name", "value"), [(LONGEST, "1"), ("retention.ms", LONGEST), ("cleanup.policy", LONGEST)])
def test_an_error_that_quotes_a_long_text_is_answered_in_every_version(peer: Peer, name: str, value: str):
    topic = {
        "name": "refused",
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": name, "value": value}],
    }
    for version in range(2, 8):
        found = peer.call(CREATE_TOPICS, version, {"topics": [topic], "timeout": 5000}).topics[0]
        assert found.error_code == ErrorCode.invalid_config
    peer.call(CREATE_TOPICS, 7, {"topics": [{**topic, "name": "altered", "configs": []}], "timeout": 5000})
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": "altered", "configs": [change]}
    for version in range(2):
        answer = peer.call(INCREMENTAL_ALTER_CONFIGS, version, {"resources": [resource]})
        assert answer.responses[0].error_code == ErrorCode.invalid_config
