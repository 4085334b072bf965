from __future__ import annotations

from collections import Counter

import pytest

from headrace import Broker
from headrace.core.config import ConfigFile
from headrace.core.errors import ConfigError
from headrace.settings import SETTINGS, Settings, flags_of, load


def test_loading_nothing_gives_the_settings_that_code_makes() -> None:
    assert load().settings == Settings()


def test_every_default_passes_its_own_check_and_reads_back() -> None:
    for item in SETTINGS:
        assert item.parse(item.show(item.default), "the default") == item.default


def test_every_flag_variable_and_kafka_name_is_unique() -> None:
    flags = Counter(flag for item in SETTINGS for flag in {item.flag, item.long_flag})
    assert [flag for flag, count in flags.items() if count > 1] == []
    assert len({item.variable for item in SETTINGS}) == len(SETTINGS)
    kafka = Counter(item.kafka for item in SETTINGS if item.kafka)
    assert [name for name, count in kafka.items() if count > 1] == []


def test_every_setting_is_explained_in_a_sentence() -> None:
    assert [item.name for item in SETTINGS if not item.help.endswith(".")] == []


def test_units_are_the_last_word_of_a_name() -> None:
    assert [item.name for item in SETTINGS if item.unit and not item.field.endswith("_" + item.unit)] == []


def test_the_short_flags_of_the_command_line_reach_their_settings() -> None:
    args = ["--data-dir", "d", "--port=0", "--host", "0.0.0.0", "--http-port", "0", "--no-http", "--flush", "os"]
    settings = load(flags_of(args)).settings
    assert (settings.storage.data_dir, settings.storage.flush) == ("d", "os")
    assert (settings.kafka.port, settings.kafka.host) == (0, "0.0.0.0")
    assert (settings.http.port, settings.http.enabled) == (0, False)


def test_a_file_reaches_every_section() -> None:
    lines = [f"{section}: {{}}" for section in {item.section for item in SETTINGS}]
    assert load(file=ConfigFile("headrace.yaml", "\n".join(lines))).settings == Settings()


def test_offsets_retention_is_shown_to_kafka_in_minutes() -> None:
    shown = {item.name: item.value for item in Settings().broker_configs()}
    assert shown["offsets.retention.minutes"] == str(7 * 24 * 60)
    assert shown["log.retention.ms"] == str(7 * 24 * 60 * 60 * 1000)


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="HEADRACE_STORAGE_FLUHS.*did you mean 'HEADRACE_STORAGE_FLUSH'"):
        load(environ={"HEADRACE_STORAGE_FLUHS": "os"})


@pytest.mark.parametrize("words", [["--http", "false"], ["--http=false"], ["--no-http"]])
def test_a_switch_is_set_as_every_other_flag_too(words):
    assert load(flags_of([*words, "--port", "0"])).settings.http.enabled is False
    assert load(flags_of(["--http", "--port", "0"])).settings.http.enabled is True


def test_errors_of_an_embedded_broker_name_its_arguments():
    with pytest.raises(ConfigError, match=r"from Broker\(port=\.\.\.\)"):
        Broker(port=99_999)
    with pytest.raises(ConfigError, match=r"from Broker\(storage_flush=\.\.\.\)"):
        Broker(storage_flush="never")


def test_a_broker_says_in_a_debugger_what_it_is():
    assert repr(Broker()) == "<headrace.Broker stopped, in memory>"
    assert repr(Broker("orders")) == "<headrace.Broker stopped, data in 'orders'>"
