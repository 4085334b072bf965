"""`headrace config`: settings on this machine, configs of a broker."""

from __future__ import annotations


def test_show_tells_where_each_setting_comes_from(command, tmp_path, monkeypatch):
    file = tmp_path / "headrace.yaml"
    file.write_text("kafka:\n  port: 9095\nstorage:\n  flush: os\n")
    monkeypatch.setenv("HEADRACE_STORAGE_FLUSH", "interval")
    found = command("config", "show", "--config", str(file), "--json").json
    assert found["kafka.port"] == {"value": 9095, "source": str(file)}
    assert found["storage.flush"] == {"value": "interval", "source": "HEADRACE_STORAGE_FLUSH"}
    assert found["storage.kind"]["source"] == "default"
    shown = command("config", "show", "--config", str(file), "--changed").out
    assert len(shown.splitlines()) == 3


def test_check_finds_what_is_unknown_or_bad(command, tmp_path):
    file = tmp_path / "headrace.yaml"
    file.write_text("kafka:\n  port: 9095\n")
    assert command("config", "check", str(file)).out == f"{file} is good: 1 settings\n"
    for text, said in (("kafka:\n  prot: 1\n", "kafka.prot"), ("kafka:\n  port: high\n", "kafka.port: 'high'")):
        file.write_text(text)
        ran = command("config", "check", str(file))
        assert ran.code == 2
        assert said in ran.err
        assert str(file) in ran.err
        assert ran.err.count("\n") == 1


def test_configs_of_a_topic_are_described_and_altered(online, headrace):
    topic = headrace.topic("configs")
    before = online("config", "describe", "topic", topic, "--changed", "--json").json
    assert "segment.ms" not in before
    assert online("config", "alter", "topic", topic, "--set", "segment.ms=1234567").code == 0
    changed = online("config", "describe", "topic", topic, "--changed", "--json").json
    assert changed["segment.ms"] == {"value": "1234567", "source": "dynamic-topic", "read_only": False}
    assert online("config", "alter", "topic", topic, "--delete", "segment.ms").code == 0
    assert online("config", "describe", "topic", topic, "--changed", "--json").json == before


def test_the_only_broker_need_not_be_named(online):
    found = online("config", "describe", "broker", "--json").json
    assert "message.max.bytes" in found
    ran = online("config", "describe", "broker", "first")
    assert ran.code == 2
