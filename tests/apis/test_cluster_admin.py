"""ClusterAdmin: the cluster's own verbs, as JSON over the Kafka port."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from headrace.apis import dispatch
from headrace.apis.api import Context
from headrace.apis.cluster_admin import API, Wish, admit
from headrace.broker.cluster_settings import ClusterSettings
from headrace.broker.council import Council
from headrace.broker.decisions import Standard
from headrace.broker.nodes import NodeWatch
from headrace.broker.post import request_frame
from headrace.broker.topics import NewTopic
from headrace.core.errors import ApiError, ErrorCode, ProtocolError


@pytest.fixture
def three(make_admin):
    admin = make_admin(brokers=3)
    service = admin.service
    nodes = NodeWatch(service.controller, ClusterSettings(), Standard())
    service.council = Council(1, "a-cluster", service.controller, nodes, Standard())
    admin.propose(*(replace(node, epoch=1) for node in admin.image.brokers.values()))
    admin.create(NewTopic("orders", assignments=[(0, (1, 2)), (1, (2, 1))]))
    return admin


def ask(admin, do: str, **fields):
    frame = request_frame(API.key, json.dumps({"do": do, **fields}).encode())
    return json.loads(asyncio.run(dispatch.answer(admin.service, frame, "127.0.0.1"))[4:])


def test_the_cluster_is_described(three):
    found = ask(three, "describe")
    assert (found["error_code"], found["cluster_id"], found["leader"]) == (0, "a-cluster", 1)
    assert [(node["node_id"], node["state"], node["replicas"], node["leaders"]) for node in found["nodes"]] == [
        (1, "alive", 2, 1),
        (2, "alive", 2, 1),
        (3, "alive", 0, 0),
    ]


def test_a_node_is_drained_emptied_and_removed(three):
    assert ask(three, "drain", node=2)["error_code"] == 0
    assert three.image.brokers[2].draining
    planned = ask(three, "rebalance", dry_run=True)["moves"]
    assert [move[:2] for move in planned] == [["orders", 0], ["orders", 1]]
    assert ask(three, "rebalance")["moves"] == planned
    moving = ask(three, "reassignments")["moving"]
    assert [(topic, index, adding, removing) for topic, index, _, adding, removing, _ in moving] == [
        ("orders", 0, [3], [2]),
        ("orders", 1, [3], [2]),
    ]
    refused = ask(three, "remove", node=2)
    assert refused["error_code"] == ErrorCode.invalid_request
    assert "holds 2 replicas" in refused["error_message"]
    assert ask(three, "drain", node=2, on=False)["error_code"] == 0


def test_partitions_are_moved_and_leaders_elected(three):
    moved = ask(three, "reassign", moves=[["orders", 0, [2]], ["orders", 9, [1]], ["orders", 1, None]])
    assert [outcome[2] for outcome in moved["outcomes"]] == [
        0,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.no_reassignment_in_progress,
    ]
    assert three.image.topics["orders"].partitions[0].replicas == (2,)
    assert ask(three, "elect")["outcomes"] == []
    named = ask(three, "elect", partitions=[["orders", 1]])["outcomes"]
    assert named[0][2] == ErrorCode.election_not_needed


def test_what_is_not_known_is_said(three):
    assert "there are describe" in ask(three, "dance")["error_message"]
    for junk in (b"", b"{}", b"[1]", b'{"do": 1}', b'{"do": "drain", "nodes": 1}', b"\xff"):
        with pytest.raises(ProtocolError):
            asyncio.run(dispatch.answer(three.service, request_frame(API.key, junk), "127.0.0.1"))


def test_what_changes_the_cluster_is_for_operators_and_looking_is_for_everybody(three):
    stranger, operator = Context(three.service, 0, "", ""), Context(three.service, 0, "", "", operator=True)
    for do in ("drain", "remove", "rebalance", "reassign", "elect", "dance"):
        admit(operator, Wish(do))
        with pytest.raises(ApiError, match="for operators") as refused:
            admit(stranger, Wish(do))
        assert refused.value.code is ErrorCode.cluster_authorization_failed
    for do in ("describe", "reassignments"):
        admit(stranger, Wish(do))
