"""Messages as JSON: what `consume --json` writes, `produce --json-lines` reads back; and templates."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import ranges
from headrace.cli.payload import from_json, to_json
from headrace.cli.report import UsageError
from headrace.cli.template import compile_template, default_template
from headrace.client.message import Message, serialise

payloads = st.none() | st.binary() | st.text().map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), payloads), max_size=4)


@given(payloads, payloads, headers)
def test_any_message_survives_json(key, value, pairs):
    pairs = sorted(pairs, key=lambda pair: pair[0])  # an object keeps repeated names together
    message = Message("t", 3, 7, 1234, key, value, tuple(pairs))
    back = from_json(json.dumps(to_json(message)))
    assert (back.key, back.value, back.headers, back.timestamp_ms) == (key, value, pairs, 1234)


def test_values_that_are_not_text_are_sent_as_json():
    assert from_json('{"value": {"id": 1, "name": "é"}}').value == '{"id":1,"name":"é"}'.encode()
    assert from_json('{"value": 5, "key": true}').key == b"true"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "1",
        "{",
        '{"valu": 1}',
        '{"headers": []}',
        '{"headers": [1]}',
        '{"value": {"base64": "!"}}',
        '{"timestamp": "x"}',
    ],
)
def test_a_bad_line_is_refused(line):
    if line == '{"headers": []}':  # nothing is nothing
        assert from_json(line).headers == []
        return
    with pytest.raises(ValueError):
        from_json(line)


def test_a_template_names_every_part():
    message = Message("t", 3, 7, 1_700_000_000_123, b"k", b"v\xff", (("a", b"1"), ("b", None)))
    write = compile_template(r"%t %p %o %T %D %k %v %h %K %S %% \\ \t|\n")
    assert write(message) == b"t 3 7 1700000000123 2023-11-14 22:13:20.123Z k v\xff a=1,b= 1 2 % \\ \t|\n"


def test_a_template_shows_null_as_nothing_and_length_minus_one():
    assert compile_template("%k%v%K%S")(Message("t", 0, 0, -1, None, None)) == b"-1-1"


def test_a_template_ending_in_a_percent_sign_is_refused():
    with pytest.raises(UsageError):
        compile_template("100%")


def test_columns_come_before_the_value():
    assert default_template(keys=True, headers=False, timestamps=False, offsets=True) == r"%t-%p:%o\t%k\t%v\n"


def test_serialising_keeps_bytes_and_encodes_the_rest():
    assert serialise(b"x") == b"x"
    assert serialise("é") == "é".encode()
    assert serialise(None) is None
    assert serialise({"a": [1, None]}) == b'{"a":[1,null]}'
    assert serialise(bytearray(b"y")) == b"y"


@given(st.sets(st.integers(0, 50)))
def test_ranges_say_the_same_numbers(numbers):
    said = set()
    for part in filter(None, ranges(numbers).split(",")):
        low, _, high = part.partition("-")
        said |= set(range(int(low), int(high or low) + 1))
    assert said == numbers
