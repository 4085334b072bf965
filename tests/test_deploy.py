"""The files under deploy/ name only settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headrace.settings import OTHER_VARIABLES, SETTINGS, flags_of, load

DEPLOY = Path(__file__).parents[1] / "deploy"
VARIABLES = {item.variable for item in SETTINGS} | set(OTHER_VARIABLES)


@pytest.fixture(scope="module")
def services() -> dict[str, dict]:
    return yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]


def test_three_nodes_a_producer_and_a_consumer_are_composed(services):
    assert list(services) == ["headrace-1", "headrace-2", "headrace-3", "producer", "consumer"]


def test_every_node_starts_with_flags_that_exist_and_ids_of_their_own(services):
    ids = []
    for name in ("headrace-1", "headrace-2", "headrace-3"):
        verb, *words = services[name]["command"]
        assert verb == "serve"
        settings = load(flags_of(words)).settings
        assert settings.kafka.advertised_host == name
        ids.append(settings.broker.node_id)
    assert ids == [1, 2, 3]


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml"])
def test_every_variable_exists(name):
    used = set(re.findall(r"\bHEADRACE_[A-Z_]+\b", (DEPLOY / name).read_text()))
    assert used
    assert used <= VARIABLES


def test_the_image_runs_without_root_and_is_watched():
    text = (DEPLOY / "Dockerfile").read_text()
    assert "\nUSER headrace\n" in text
    assert "HEALTHCHECK" in text
