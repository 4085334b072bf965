"""What is deployed beside the broker names only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from headrace.broker.image import BrokerRecord, Image, apply
from headrace.core.counters import ClusterCounters, Counters, Histogram, Traffic
from headrace.gateways.http import metrics
from headrace.gateways.http.cluster_metrics import ClusterNumbers

DEPLOY = Path(__file__).parents[3] / "deploy"


def cluster() -> ClusterNumbers:
    image = apply(Image(), [BrokerRecord(1, "h", 9092)])
    return ClusterNumbers(image, ClusterCounters(), "leader", 1, 1, 1, 1, 1, lags={2: 0}, skews_ms={2: 0.0})


def exported() -> set[str]:
    counters = Counters(requests={"Produce": Histogram()}, errors={("Produce", 1): 1}, topics={"t": Traffic()})
    led, offsets = [("t", 0, 3, 3)], [("g", "t", 0, 0)]
    numbers = metrics.Numbers(True, counters, [("t", 0, 0, 0, 0, 0)], led, offsets, {"Stable": 1}, cluster())
    text, _ = metrics.Page("1").encode(numbers, "")
    return {line.split("{")[0].split(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")}


def named(text: str) -> set[str]:
    return set(re.findall(r"\b(?:headrace|process)_\w+", text))


def test_the_dashboard_shows_metrics_that_exist():
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    wanted = named(" ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]))
    assert wanted
    assert wanted <= exported()


def test_the_alerts_watch_metrics_that_exist():
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8"))
    wanted = named(" ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"]))
    assert wanted
    assert wanted <= exported()
    assert yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
