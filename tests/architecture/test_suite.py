"""Rules for the tests themselves."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_no_property_fails_because_the_machine_is_busy() -> None:
    usual = settings()
    assert usual.deadline is None and HealthCheck.too_slow in usual.suppress_health_check
