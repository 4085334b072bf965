from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import ConfigFile, ConfigType, at_least, broker_configs, declared, flags_of, resolve, setting
from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Mill:
    wheels: int = setting(2, help="Wheels.", check=at_least(1), kafka="mill.wheels")
    depth: int = setting(4096, help="Depth.", unit="bytes")
    rest: int = setting(600_000, help="Rest.", unit="ms", kafka="mill.rest.minutes")
    ratio: float = setting(0.5, help="Ratio.")
    open: bool = setting(True, help="Open.", kafka="mill.open")
    owner: str | None = setting(None, help="Owner.", kafka="mill.owner")
    stone: Literal["granite", "sandstone"] = setting("granite", help="Stone.", flag="--stone")


SETTINGS = declared("mill", Mill)


def load(
    flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, file: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    return resolve(
        SETTINGS,
        flags=flags or {},
        environ=environ or {},
        file=None if file is None else ConfigFile("mill.yaml", file),
        other_variables=["HEADRACE_CONFIG"],
    )


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_any_source_every_value_is_the_default() -> None:
    values, sources = load()
    assert values == {f"mill.{item.field}": item.default for item in SETTINGS}
    assert set(sources.values()) == {"default"}


def test_a_flag_beats_a_variable_beats_the_file() -> None:
    file = "mill: {wheels: 3, depth: 3KiB, ratio: 0.3}"
    environ = {"HEADRACE_MILL_WHEELS": "4", "HEADRACE_MILL_DEPTH": "4KiB", "PATH": "/bin"}
    values, sources = load({"mill.wheels": "5"}, environ, file)
    assert (values["mill.wheels"], values["mill.depth"], values["mill.ratio"]) == (5, 4096, 0.3)
    assert sources["mill.wheels"] == "--mill-wheels"
    assert sources["mill.depth"] == "HEADRACE_MILL_DEPTH"
    assert sources["mill.ratio"] == "mill.yaml"
    assert sources["mill.open"] == "default"


def test_a_hidden_bad_value_does_not_matter_when_a_stronger_source_speaks() -> None:
    values, _ = load({"mill.wheels": "5"}, {"HEADRACE_MILL_WHEELS": "many"})
    assert values["mill.wheels"] == 5


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("YES", True), ("on", True), ("1", True), ("false", False), ("off", False)]
)
def test_switches_are_read_in_every_common_spelling(text: str, value: bool) -> None:
    assert load({"mill.open": text})[0]["mill.open"] is value


def test_yaml_null_and_an_empty_text_unset_an_optional_setting() -> None:
    assert load(file="mill: {owner: null}")[0]["mill.owner"] is None
    assert load(environ={"HEADRACE_MILL_OWNER": ""})[0]["mill.owner"] is None


@pytest.mark.parametrize("file", ["", "# nothing\n", "mill:\n"])
def test_an_empty_file_or_section_changes_nothing(file: str) -> None:
    assert load(file=file) == load()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"flags": {"mill.wheels": "many"}}, ["mill.wheels", "'many'", "--mill-wheels"]),
        ({"flags": {"mill.wheels": "0"}}, ["mill.wheels", "'0'", "at least 1", "--mill-wheels"]),
        ({"flags": {"mill.stone": "granit"}}, ["mill.stone", "'granit'", "--stone", "did you mean 'granite'?"]),
        ({"flags": {"mill.weels": "1"}}, ["mill.weels", "did you mean 'mill.wheels'?"]),
        ({"environ": {"HEADRACE_MILL_OPEN": "maybe"}}, ["mill.open", "'maybe'", "HEADRACE_MILL_OPEN"]),
        (
            {"environ": {"HEADRACE_MILL_WEELS": "1"}},
            ["HEADRACE_MILL_WEELS", "'1'", "did you mean 'HEADRACE_MILL_WHEELS'?"],
        ),
        ({"environ": {"HEADRACE_MILL_WHEELS": ""}}, ["mill.wheels", "''", "HEADRACE_MILL_WHEELS"]),
        ({"file": "mill: {weels: 1}"}, ["mill.weels", "1", "mill.yaml", "did you mean 'mill.wheels'?"]),
        ({"file": "mil: {wheels: 1}"}, ["mil", "mill.yaml", "did you mean 'mill'?"]),
        ({"file": "mill: {wheels: [1, 2]}"}, ["mill.wheels", "[1, 2]", "mill.yaml"]),
        ({"file": "mill: {depth: 5 apples}"}, ["mill.depth", "'5 apples'", "mill.yaml"]),
        ({"file": "mill: 7"}, ["mill", "7", "mill.yaml"]),
        ({"file": "- 7"}, ["7", "mill.yaml"]),
        ({"file": "mill: {"}, ["mill.yaml", "not YAML"]),
    ],
)
def test_a_refusal_is_one_line_that_names_setting_value_and_source(given: dict[str, Any], parts: list[str]) -> None:
    message = refusal(**given)
    assert [part for part in parts if part not in message] == [], message


def test_a_yaml_file_cannot_make_objects() -> None:
    assert "mill.yaml" in refusal(file="mill: !!python/object/apply:os.getcwd []")


def test_declared_other_variables_and_service_links_are_let_through() -> None:
    environ = {
        "HEADRACE_CONFIG": "mill.yaml",
        "HEADRACE_PORT": "tcp://10.0.0.1:9092",
        "HEADRACE_PORT_9092_TCP_ADDR": "10.0.0.1",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT_KAFKA": "9092",
    }
    assert load(environ=environ) == load()


def test_flags_are_read_in_every_common_form() -> None:
    args = ["--mill-wheels", "3", "--mill-depth=8KiB", "--no-mill-open", "--stone", "sandstone", "--mill-owner", "--x"]
    assert flags_of(SETTINGS, args) == {
        "mill.wheels": "3",
        "mill.depth": "8KiB",
        "mill.open": "false",
        "mill.stone": "sandstone",
        "mill.owner": "--x",
    }
    assert flags_of(SETTINGS, ["--mill-open"]) == {"mill.open": "true"}
    assert flags_of(SETTINGS, ["--mill-stone=granite"]) == {"mill.stone": "granite"}


@pytest.mark.parametrize(
    "args", [["--mill-weels", "3"], ["stray"], ["--mill-wheels"], ["--no-mill-wheels"], ["--no-x"]]
)
def test_a_flag_that_cannot_be_read_is_refused(args: list[str]) -> None:
    with pytest.raises(ConfigError):
        flags_of(SETTINGS, args)


def test_kafka_sees_its_own_names_units_and_types() -> None:
    values, _ = load({"mill.wheels": "3"})
    shown = {item.name: item for item in broker_configs(SETTINGS, values)}
    assert set(shown) == {"mill.wheels", "mill.rest.minutes", "mill.open", "mill.owner"}
    assert (shown["mill.wheels"].value, shown["mill.wheels"].default) == ("3", "2")
    assert not shown["mill.wheels"].is_default
    assert shown["mill.rest.minutes"].value == "10"
    assert (shown["mill.open"].value, shown["mill.open"].type) == ("true", ConfigType.BOOLEAN)
    assert shown["mill.owner"].value is None


@given(st.text(max_size=30), st.sampled_from(SETTINGS))
def test_no_text_gets_past_a_setting_but_as_its_type(text: str, item: Any) -> None:
    try:
        value = item.parse(text, "a test")
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(value, item.kind) or (item.optional and value is None)


@given(st.sampled_from(SETTINGS), st.integers(1, 2**40))
def test_what_a_setting_shows_it_reads_back(item: Any, amount: int) -> None:
    value = amount if item.kind is int else item.default
    assert item.parse(item.show(value), "a test") == value
