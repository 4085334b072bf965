"""What a supervisor runs, from options and files."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.supervisor.plan import Choices, plan, read

ANALOG = """
coordinator:
  port: 8080
  console_port: 8081
  broker_count: 5
  broker_executable: ./bin/broker

broker:
  base_port: 9092  # Brokers will use ports 9092-9096
  data_dir: ./data
  storage: memory  # memory | disk

topics:
  default_partitions: 10  # Distributed across 5 brokers
  replication_factor: 2

consumer:
  session_timeout_ms: 10000
  heartbeat_interval_ms: 3000

producer:
  batch_size: 16384
  linger_ms: 100

nodejs_writer:
  port: 3001
  producer_url: localhost:9093

nodejs_reader:
  port: 3002
  consumer_url: localhost:9094
"""


def flag(words: tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_file_of_the_analog_document_is_accepted_as_it_is():
    choices, notes = read(ANALOG, "config.yaml")
    made = plan(choices, notes=tuple(notes))
    assert [one.port for one in made.services] == [9092, 9093, 9094, 9095, 9096]
    assert [one.number for one in made.services] == [0, 1, 2, 3, 4]
    assert (made.status_port, made.console_port) == (8080, 8081)
    assert made.temporary
    words = made.services[3].words
    assert flag(words, "--broker-num-partitions") == "10"
    assert flag(words, "--broker-default-replication-factor") == "2"
    assert flag(words, "--data-dir") == "./data/broker-3"
    assert any("broker_executable is not used" in note for note in made.notes)


def test_ports_that_collide_in_the_document_are_moved_and_said():
    choices, _ = read(ANALOG, "config.yaml")
    made = plan(choices, doors=frozenset({"producer", "consumer"}))
    ports = {one.name: one.port for one in made.services}
    assert (ports["producer"], ports["consumer"]) == (9097, 9098)
    assert "port 9093 belongs to broker 1; the producer is on 9097" in made.notes
    taken = [*ports.values(), made.status_port, made.console_port, *(one.health_port for one in made.services)]
    assert len(set(taken) - {None}) == len([port for port in taken if port is not None])


def test_every_broker_knows_all_others():
    made = plan(Choices(brokers=3))
    assert [one.seeds for one in made.services] == [
        "127.0.0.1:9093,127.0.0.1:9094",
        "127.0.0.1:9092,127.0.0.1:9094",
        "127.0.0.1:9092,127.0.0.1:9093",
    ]
    assert made.services[1].data_dir == "./headrace-data/broker-1"
    assert made.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


def test_a_factor_beyond_the_brokers_is_lowered_and_said():
    made = plan(Choices(brokers=2, replication_factor=3, min_insync_replicas=3))
    assert flag(made.services[0].words, "--broker-default-replication-factor") == "2"
    assert flag(made.services[0].words, "--broker-min-insync-replicas") == "2"
    assert any("it is 2" in note for note in made.notes)


def test_services_that_were_not_asked_for_are_neither_started_nor_spoken_of():
    made = plan(Choices(brokers=1, replication_factor=1))
    assert [one.kind for one in made.services] == ["broker"]
    assert made.notes == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "must hold sections"),
        ("brokers:\n  port: 1", "no section 'brokers'"),
        ("broker:\n  colour: red", "no key broker.colour"),
        ("broker: 7", "broker must hold keys"),
        ("broker:\n  base_port: soon", "must be a whole number"),
        ("broker:\n  base_port: 99999", "too small or too large"),
        ("coordinator:\n  broker_count: 0", "too small or too large"),
        ("coordinator:\n  broker_count: true", "must be a whole number"),
        ("broker:\n  storage: tape", "must be one of disk, memory"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(text, said):
    with pytest.raises(ConfigError, match="config.yaml") as refused:
        read(text, "config.yaml")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_too_many_brokers_and_ports_beyond_the_end_are_refused():
    with pytest.raises(ConfigError, match="1 to 100"):
        plan(Choices(brokers=101))
    with pytest.raises(ConfigError, match="ports end at 65535"):
        plan(Choices(brokers=5, base_port=65_533))
