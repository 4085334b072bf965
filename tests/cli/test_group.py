"""`headrace group` against a broker: lag, reset, delete."""

from __future__ import annotations

import pytest


@pytest.fixture
def read_topic(online, headrace):
    """A topic with ten messages in two partitions, and a group that has read six of them."""
    topic, group = headrace.topic("read", partitions=2), headrace.group()
    for partition in ("0", "1"):
        for number in range(5):
            stamp = str(1_700_000_000_000 + number * 1000)
            online("produce", topic, str(number), "-p", partition, "--timestamp", stamp, "-q")
    ran = online("consume", topic, "--group", group, "-B", "-e", "--max", "6")
    assert ran.code == 0, ran.err
    return topic, group


def _committed(online, group):
    (view,) = online("group", "describe", group, "--json").json
    return {part["partition"]: part["committed"] for part in view["partitions"]}


def test_list_and_describe_show_state_and_lag(online, read_topic):
    topic, group = read_topic
    assert {"group": group, "state": "empty", "type": "classic"} in online("group", "list", "--json").json
    assert group in online("group", "list", "--state", "empty").out
    assert group not in online("group", "list", "--state", "stable").out
    (view,) = online("group", "describe", group, "--json").json
    assert view["state"] == "empty"
    assert view["lag"] == 4
    assert all(part["topic"] == topic and part["end_offset"] == 5 for part in view["partitions"])
    assert f"{group}: empty, 0 members, lag 4" in online("group", "describe", group).out


def test_describe_shows_members_and_what_they_own(online, headrace):
    from headrace.client import Consumer

    topic, group = headrace.topic("owned", partitions=3), headrace.group()
    online("produce", topic, "x")
    with Consumer(topic, group=group) as consumer:
        assert consumer.poll(60) is not None
        (view,) = online("group", "describe", group, "--json").json
        shown = online("group", "describe", group).out
    assert view["state"] == "stable"
    (member,) = view["members"]
    assert member["client_id"] == "headrace"
    assert [part["partition"] for part in member["assignment"]] == [0, 1, 2]
    assert f"{topic}:0-2" in shown


def test_a_group_of_the_new_protocol_is_shown_with_its_epochs_and_reset_when_it_is_empty(online, headrace):
    from confluent_kafka import Consumer

    topic, group = headrace.topic("modern", partitions=3), headrace.group()
    online("produce", topic, "x", "-p", "1")
    config = {"bootstrap.servers": headrace.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer(config | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    message = consumer.poll(60)
    assert message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    (view,) = online("group", "describe", group, "--json").json
    shown = online("group", "describe", group).out
    listed = online("group", "list", "--type", "consumer", "--json").json
    consumer.close()
    assert (view["state"], view["type"], view["assignor"]) == ("stable", "consumer", "uniform")
    assert view["group_epoch"] == view["assignment_epoch"] == 1
    (member,) = view["members"]
    assert (member["epoch"], member["protocol"]) == (1, "consumer")
    assert member["assignment"] == member["target"] == [{"topic": topic, "partition": index} for index in range(3)]
    assert f"{group}: stable, 1 member, lag 0, assignor uniform, epoch 1" in shown
    assert f"{topic}:0-2" in shown
    assert {"group": group, "state": "stable", "type": "consumer"} in listed
    assert group not in online("group", "list", "--type", "classic").out
    ran = online("group", "reset", group, "--topic", topic, "--to", "earliest", "--yes")
    assert ran.code == 0, ran.err
    assert _committed(online, group) == {0: 0, 1: 0, 2: 0}
    assert online("group", "list", "--type", "share").code == 2


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 5, 1: 5}),
        ("offset:3", {0: 3, 1: 3}),
        ("offset 2", {0: 2, 1: 2}),
        ("offset:99", {0: 5, 1: 5}),
        ("time:2023-11-14T22:13:22Z", {0: 2, 1: 2}),
        ("by-duration:10m", {0: 5, 1: 5}),
    ],
)
def test_reset_moves_a_group(online, read_topic, to, expected):
    topic, group = read_topic
    planned = online("group", "reset", group, "--topic", topic, "--to", to, "--dry-run", "--json").json
    assert {part["partition"]: part["after"] for part in planned["partitions"]} == expected
    assert _committed(online, group) != expected or to == "offset:3"
    ran = online("group", "reset", group, "--topic", topic, "--to", to, "--yes")
    assert ran.code == 0, ran.err
    assert _committed(online, group) == expected


def test_reset_shifts_from_where_the_group_is(online, read_topic):
    topic, group = read_topic
    online("group", "reset", group, "--topic", topic, "--to", "offset:3", "--yes")
    online("group", "reset", group, "--topic", f"{topic}:1", "--to", "shift:-2", "--yes")
    assert _committed(online, group) == {0: 3, 1: 1}
    online("group", "reset", group, "--all-topics", "--to", "shift:+1", "--yes")
    assert _committed(online, group) == {0: 4, 1: 2}


def test_reset_asks_and_without_anyone_to_ask_does_nothing(online, read_topic):
    topic, group = read_topic
    before = _committed(online, group)
    ran = online("group", "reset", group, "--topic", topic, "--to", "earliest")
    assert ran.code == 2
    assert "add --yes" in ran.err
    assert _committed(online, group) == before


def test_a_group_with_members_is_neither_reset_nor_deleted(online, headrace):
    from headrace.client import Consumer

    topic, group = headrace.topic("busy"), headrace.group()
    online("produce", topic, "x")
    with Consumer(topic, group=group) as consumer:
        assert consumer.poll(60) is not None
        reset = online("group", "reset", group, "--topic", topic, "--to", "earliest", "--yes")
        deleted = online("group", "delete", group, "--yes")
    for ran in (reset, deleted):
        assert ran.code == 1
        assert "first" in ran.err
        assert ran.err.count("\n") == 1


def test_offsets_and_groups_are_deleted(online, read_topic):
    topic, group = read_topic
    assert online("group", "delete-offsets", group, "--topic", f"{topic}:1", "--yes").code == 0
    assert set(_committed(online, group)) == {0}
    assert online("group", "delete", group, "--yes").out == f"deleted group {group}\n"
    ran = online("group", "describe", group)
    assert ran.code == 1
    assert ran.err.endswith("see: headrace group list\n")
