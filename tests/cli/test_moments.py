"""Times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.moments import duration_ms, moment_ms
from headrace.cli.report import UsageError

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("10min", 600_000),
        ("2h30m", 9_000_000),
        ("1.5d", 129_600_000),
    ],
)
def test_durations_read_as_people_mean_them(text, ms):
    assert duration_ms(text, "--for") == ms


@pytest.mark.parametrize("text", ["", "10", "m", "10x", "-10m", "10m!", "1e9s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="--for"):
        duration_ms(text, "--for")


def test_a_duration_is_a_time_that_long_ago():
    assert moment_ms("10m", "--since", now=NOW) == NOW - 600_000
    assert moment_ms("now", "--since", now=NOW) == NOW


def test_zones_are_honoured():
    assert moment_ms("2026-01-31T12:00:00+02:00", "--since") == moment_ms("2026-01-31T10:00:00Z", "--since")


@given(st.integers(10**9, 4 * 10**12))
def test_epoch_milliseconds_and_iso_times_agree(ms):
    iso = datetime.fromtimestamp(ms // 1000, UTC).isoformat()
    assert moment_ms(str(ms), "--since") == ms
    assert moment_ms(iso, "--since") == ms // 1000 * 1000


@pytest.mark.parametrize("text", ["", "12", "2026", "2026-13-01", "yesterday"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="--since"):
        moment_ms(text, "--since")
