from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.units import parse_bytes, parse_ms, show_bytes, show_ms


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("-1", -1),
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("10 kB", 10_000),
        ("1gib", 1 << 30),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("10min", 600_000), ("7d", 604_800_000), ("0.5s", 500), ("-1", -1)],
)
def test_times_are_read_as_people_write_them(text: str, amount: int) -> None:
    assert parse_ms(text) == amount


@pytest.mark.parametrize("text", ["", "x", "5 apples", "1e6", "0x10", "1.5", "1,000", "7d 3h", "٣", "--1", "9" * 31])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)
    with pytest.raises(ValueError):
        parse_ms(text)


@given(st.integers(min_value=-1, max_value=2**63 - 1))
def test_what_is_shown_reads_back_as_the_same_amount(amount: int) -> None:
    assert parse_bytes(show_bytes(amount)) == amount
    assert parse_ms(show_ms(amount)) == amount
