"""Rules for the tests themselves."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[2]


def test_no_property_fails_because_the_machine_is_busy() -> None:
    usual = settings()
    assert usual.deadline is None and HealthCheck.too_slow in usual.suppress_health_check


def test_the_demo_installs_the_versions_that_are_tested() -> None:
    def pinned(name: str) -> set[str]:
        lines = (ROOT / name).read_text().splitlines()
        return {line.removesuffix(" \\") for line in lines if "==" in line and not line.startswith(" ")}

    assert pinned("requirements-demo.lock") <= pinned("requirements.lock")
