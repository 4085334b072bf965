"""`headrace topic` against a broker."""

from __future__ import annotations


def test_a_topic_is_created_listed_described_and_deleted(online, headrace):
    name = headrace.name("orders")
    assert online("topic", "create", name, "-p", "3", "-c", "segment.ms=60000").out == f"created topic {name}\n"
    listed = {row["topic"]: row for row in online("topic", "list", "--json").json}
    assert listed[name] == {
        "topic": name,
        "internal": False,
        "partitions": 3,
        "replication_factor": 1,
        "offsets": 0,
    }
    (described,) = online("topic", "describe", name, "--json").json
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert all(part["isr"] == part["replicas"] == [part["leader"]] for part in described["partitions"])
    assert described["configs"]["segment.ms"]["value"] == "60000"
    assert online("topic", "delete", name, "--yes").out == f"deleted topic {name}\n"
    assert name not in {row["topic"] for row in online("topic", "list", "--json").json}


def test_describe_shows_offsets_sizes_and_only_configs_that_differ(online, headrace):
    name = headrace.topic("seen", configs={"cleanup.policy": "compact"})
    online("produce", name, "a", "b", "--key", "k")
    shown = online("topic", "describe", name).out
    assert f"{name}: 1 partition, 2 offsets" in shown
    assert "cleanup.policy=compact" in shown
    assert "segment.ms" not in shown
    (described,) = online("topic", "describe", name, "--json").json
    (part,) = described["partitions"]
    assert (part["start_offset"], part["end_offset"]) == (0, 2)
    assert part["bytes"] > 0


def test_a_second_create_fails_and_names_the_way_out(online, headrace):
    name = headrace.topic("twice")
    again = online("topic", "create", name)
    assert again.code == 1
    assert again.err.endswith("; add --if-not-exists to accept that\n")
    accepted = online("topic", "create", name, "--if-not-exists", "--json")
    assert accepted.code == 0
    assert accepted.json == {"topic": name, "created": False}


def test_alter_grows_and_changes_only_what_it_is_told(online, headrace):
    name = headrace.topic("grow", configs={"segment.ms": "60000"})
    ran = online("topic", "alter", name, "-p", "4", "-c", "max.message.bytes=2000000", "--delete-config", "segment.ms")
    assert ran.code == 0, ran.err
    (described,) = online("topic", "describe", name, "--json").json
    assert len(described["partitions"]) == 4
    assert described["configs"]["max.message.bytes"]["value"] == "2000000"
    assert described["configs"]["segment.ms"]["default"]


def test_an_unknown_topic_is_not_created_by_asking(online, headrace):
    name = headrace.name("never")
    for words in (["topic", "describe", name], ["topic", "alter", name, "-p", "2"], ["consume", name, "-e"]):
        ran = online(*words)
        assert ran.code == 1, words
        assert ran.err.endswith("see: headrace topic list\n"), ran.err
    assert name not in {row["topic"] for row in online("topic", "list", "--json").json}


def test_a_bad_name_a_bad_config_and_too_many_replicas_are_refused_in_one_line(online, headrace):
    name = headrace.name("bad")
    for words in (
        ["topic", "create", "a/b"],
        ["topic", "create", name, "-c", "segment.ms=soon"],
        ["topic", "create", name, "-c", "no.such=1"],
        ["topic", "create", name, "-r", "3"],
    ):
        ran = online(*words)
        assert ran.code == 1, words
        assert ran.err.count("\n") == 1
        assert "Traceback" not in ran.err


def test_internal_topics_are_shown_on_demand(online, headrace):
    online("produce", headrace.topic("work"), "a")
    online("consume", headrace.topic("work"), "--group", headrace.group(), "-B", "-e")
    assert all(not row["internal"] for row in online("topic", "list", "--json").json)
    assert "__consumer_offsets" in online("topic", "list", "--internal").out
