"""The frame: help, errors, exit codes, and what is imported when."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.cli import VERBS
from headrace.cli.report import complain

HEAVY = ("confluent_kafka", "rich", "starlette", "uvicorn", "kio", "yaml", "headrace.client", "headrace.broker")


def test_help_names_every_verb_and_shows_examples(command):
    shown = command("--help")
    assert shown.code == 0
    assert all(f"\n  {verb} " in shown.out for verb in VERBS)
    assert shown.out.count("headrace produce") == 1
    assert max(len(line) for line in shown.out.splitlines()) <= 100


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; from headrace.cli import run; run(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_python_dash_m_is_the_same_command():
    ran = subprocess.run([sys.executable, "-m", "headrace", "version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("headrace ")


def test_version_tells_what_headrace_stands_on(command):
    found = command("version", "--json").json
    assert {"headrace", "python", "kio", "librdkafka", "platform"} <= set(found)
    assert command("--version").out == f"headrace {found['headrace']}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topik"], "no verb 'topik'; did you mean 'topic'?"),
        (["topic", "create"], "missing argument 'NAME'"),
        (["topic", "list", "--jsno"], "--jsno"),
        (["topic", "create", "x", "--partitions", "many"], "'many'"),
        (["topic", "create", "x", "--config", "retention.ms"], "--config 'retention.ms' is not KEY=VALUE"),
        (["topic", "alter", "x"], "nothing to alter"),
        (["topic", "delete", "x"], "add --yes"),
        (["topic", "list", "-b", "somewhere:port"], "'somewhere:port' is not HOST:PORT"),
        (["produce", "x", "a", "--file", "b"], "give values or --file, not both"),
        (["produce", "x", "--null", "a"], "--null stands alone"),
        (["produce", "x", "a", "--timestamp", "soon"], "--timestamp 'soon'"),
        (["consume", "x", "--json", "--raw"], "contradict"),
        (["consume", "x", "--tail", "1", "--since", "1h"], "--since and --tail contradict"),
        (["consume", "x", "--since", "yesterday"], "--since 'yesterday'"),
        (["consume", "x", "--offset", "first"], "--offset 'first'"),
        (["consume", "x", "--format", "%q"], "--format has no %q"),
        (["group", "reset", "g", "--topic", "t", "--to", "tomorrow"], "--to 'tomorrow' is not earliest"),
        (["group", "reset", "g", "--to", "earliest"], "give --topic or --all-topics"),
        (["group", "list", "--state", "happy"], "--state 'happy'"),
        (["log", "list", "/no/such/place"], "/no/such/place: no such directory"),
        (["config", "check", "/no/such/file"], "/no/such/file"),
        (["config", "alter", "topic", "t"], "nothing to alter"),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_2(command, words, said):
    ran = command(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("headrace: ")


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "create", "x"],
        ["produce", "x", "hello"],
        ["consume", "x"],
        ["consume", "x", "--group", "g"],
        ["group", "list"],
        ["config", "describe", "broker"],
    ],
)
def test_a_missing_broker_is_said_at_once_with_the_remedy(command, words):
    ran = command(*words, "--bootstrap", "127.0.0.1:1")
    assert ran.code == 1
    assert ran.err == (
        "headrace: cannot reach a broker at 127.0.0.1:1 (connection refused); "
        "is a broker running? try: headrace serve\n"
    )


def test_an_unknown_client_property_is_a_configuration_error(online):
    ran = online("topic", "list", "-X", "no.such.property=1")
    assert ran.code == 2
    assert "no.such.property" in ran.err


def test_a_traceback_is_shown_only_on_demand(command):
    words = ["topic", "list", "--bootstrap", "127.0.0.1:1"]
    assert "Traceback" not in command(*words).err
    assert "Traceback" in command("--debug", *words).err


def test_a_reader_that_has_seen_enough_is_no_error():
    piped = f"{sys.executable} -m headrace serve --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_help_of_serve_names_the_choices_of_every_flag(command):
    shown = command("serve", "--help").out
    assert "\n  --memory\n" in shown and "\n  --flush ack|interval|os\n" in shown and "--http true|false" in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "[]" not in shown


def test_a_data_directory_that_is_a_file_is_named(command, tmp_path):
    (tmp_path / "data").write_text("")
    ran = command("serve", "--data-dir", str(tmp_path / "data"), "--port", "0")
    assert ran.code == 2
    assert "data is a file; choose a directory with --data-dir" in ran.err


def test_a_missing_extra_is_named_with_its_remedy():
    absent = ModuleNotFoundError("No module named 'pyarrow.parquet'", name="pyarrow.parquet")
    assert complain(absent).line == "Spark is not installed (pyarrow is missing): pip install 'headrace[spark]'"
