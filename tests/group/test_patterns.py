"""Patterns: the language that we serve means what Python's `re` means by it, and matching takes linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.group.patterns import PROGRAM_SIZE, Pattern, PatternError
from headrace.group.topics import Reading, Topic, TopicTable

ATOMS = st.sampled_from(
    ["a", "b", "c", r"\.", "-", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", "^", "$", "[-a]", "[]b]"]
)


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.builds(
        lambda text, sign: f"(?:{text}){sign}",
        inner,
        st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?"]),
    )
    sequences = st.lists(inner, min_size=1, max_size=3).map("".join)
    choices = st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"({'|'.join(branches)})")
    return st.one_of(repeated, sequences, choices)


PATTERNS = st.recursive(ATOMS, _grow, max_leaves=8)
NAMES = st.text(alphabet="abc.-1", max_size=7)


@given(PATTERNS, st.lists(NAMES, min_size=1, max_size=8))
def test_a_pattern_means_what_pythons_re_means(text: str, names: list[str]) -> None:
    pattern, oracle = Pattern(text), re.compile(text)
    for name in names:
        assert pattern.matches(name) is (oracle.fullmatch(name) is not None), (text, name)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        Pattern(text).matches("a-topic")
    except PatternError as fault:
        assert str(fault)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders-eu", False),
        ("^orders", "orders-eu", False),
        ("^orders.*", "orders-eu", True),
        ("orders|payments", "payments", True),
        ("(?P<kind>a|b)-x", "b-x", True),
        ("(?<kind>a|b)-x", "b-x", True),
        (r"\Aa\z", "a", True),
        ("a{,3}", "a{,3}", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_a_pattern_matches_whole_names_only(text: str, name: str, expected: bool) -> None:
    assert Pattern(text).matches(name) is expected


@pytest.mark.parametrize(
    "text",
    [
        "(", "a)", "[a", "a\\", "*", "a**", "a{3,1}", "a{1001}", "[b-a]", "(?i)a", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1",
        r"\bx", r"\pN", "[[:alpha:]]", "(?P<1>a)", "x" * 9000, "(" * 101 + ")" * 101, "(((a{1000}){1000}){1000})",
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(PatternError, match=r"\w"):
        Pattern(text)


NASTY = ["(a*)*b", "(a|a)*b", "(a+)+b", "(a|aa)+b", "a?" * 50 + "a" * 50, "(.*)(.*)(.*)(.*)b", "(a|b)*a(a|b){60}"]


@pytest.mark.parametrize("text", NASTY)
def test_nasty_patterns_take_linear_time(text: str) -> None:
    """Steps, not seconds: twice the name is at most about twice the work, and a character costs at most the pattern."""
    pattern = Pattern(text)
    size = len(pattern._program)
    for length in (50, 100, 200):
        before = pattern.steps
        pattern.matches("ab" * (length // 2))
        pattern.matches("a" * length)
        assert pattern.steps - before <= 2 * (length + 2) * (2 * size + 1)


def test_repeated_nothing_does_not_take_for_ever() -> None:
    assert len(Pattern("((((){1000}){1000}){1000}){1000}")._program) < PROGRAM_SIZE


def _reading(*names: str) -> Reading:
    return Reading(TopicTable({name: Topic(f"{at}", 1) for at, name in enumerate(names)}))  # type: ignore[arg-type]


def test_a_pattern_never_means_an_internal_topic() -> None:
    reading = _reading("a", "__consumer_offsets", "__mine")
    assert reading.matching(".*") == {"a", "__mine"}


def test_a_pattern_is_tried_on_new_names_only() -> None:
    reading = _reading("a", "b")
    assert reading.matching("[ab]") == {"a", "b"}
    steps = reading._known("[ab]").pattern.steps
    reading.topics = TopicTable({name: reading.topics.find("a") for name in ("a", "b", "c")})  # type: ignore[misc]
    assert reading.matching("[ab]") == {"a", "b"}
    assert reading._known("[ab]").pattern.steps - steps <= 4


def test_a_pattern_that_would_take_too_long_is_refused_when_it_comes_and_never_later() -> None:
    names = [f"{at * 7919:030b}{'ab' * 100}".replace("0", "a").replace("1", "b") for at in range(60)]
    reading = _reading(*names)
    text = "(a|b)*a(a|b){400}"
    fault = reading.pattern_fault(text)
    assert fault is not None and "too long" in fault
    assert reading.matching(text) == frozenset()
