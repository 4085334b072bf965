"""`headrace serve`: a broker in the foreground until Ctrl-C or SIGTERM.

One readable line on stdout says that it is ready, and where; logs go to stderr.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from headrace.core.config import ConfigFile
    from headrace.settings import Settings

HELP_WIDTH, INDENT = 100, " " * 6

HELP = """Run a broker in the foreground. Ctrl-C or SIGTERM stops it cleanly.

  headrace serve                                   durable, in ./headrace-data, on 127.0.0.1:9092
  headrace serve --memory --port 0                 nothing on disk, any free port
  headrace serve --data-dir /var/lib/headrace --host 0.0.0.0 --advertised-host broker.example

Every setting is a flag, a variable HEADRACE_SECTION_NAME and a key in the --config file, in this
order of precedence. `headrace config show` prints what is in effect.
"""


def direct(words: list[str]) -> None:
    """The verb, without Typer: every setting is a flag, and the start must be quick."""
    if "--help" in words or "-h" in words:
        print(_help())
        return
    begun = _process_start()
    settings = _settings(words)
    _check_data_dir(settings)
    from headrace.runtime import allocator, logs, loop
    from headrace.runtime.descriptor_limit import raise_descriptor_limit

    allocator.keep_freed_memory()
    raise_descriptor_limit()
    logs.configure(settings.log)
    try:
        loop.run(_serve(settings, begun))
    finally:
        logs.flush()


def _help() -> str:
    from textwrap import fill

    from headrace.settings import SETTINGS

    lines = [HELP, "Flags:", "  --config FILE", "      Read settings from a YAML file."]
    lines += ["  --memory", "      Keep nothing on disk: short for --storage-kind memory."]
    for item in SETTINGS:
        value = "true|false" if item.kind is bool else "|".join(item.choices) or item.field.upper()
        default = item.show(item.default)
        told = f"{item.help} [{default}]" if default else item.help
        lines.append(f"  {item.flag} {value}")
        lines.append(fill(told, HELP_WIDTH, initial_indent=INDENT, subsequent_indent=INDENT))
    return "\n".join(lines)


def _settings(given: list[str]) -> Settings:
    from headrace.settings import flags_of, load

    path = os.environ.get("HEADRACE_CONFIG")
    rest = []
    words = iter(given)
    for word in words:
        if word == "--config":
            path = next(words, None)
            if path is None:
                raise ConfigError("--config needs the path of a YAML file")
        elif word == "--memory":
            rest += ["--storage-kind", "memory"]
        elif word.startswith("--config="):
            path = word.removeprefix("--config=")
        else:
            rest.append(word)
    return load(flags_of(rest), os.environ, _config_file(path)).settings


def _check_data_dir(settings: Settings) -> None:
    """Say in words what the system would say with a number."""
    place = settings.storage.data_dir
    if settings.storage.kind != "disk":
        return
    if os.path.exists(place) and not os.path.isdir(place):
        raise ConfigError(f"storage.data_dir: {place} is a file; choose a directory with --data-dir")
    if os.path.isdir(place) and not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"storage.data_dir: {place} may not be written by this user; choose another --data-dir")


def _config_file(path: str | None) -> ConfigFile | None:
    from headrace.core.config import ConfigFile

    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            return ConfigFile(path, stream.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {getattr(error, 'strerror', None) or error}") from error


async def _serve(settings: Settings, begun: float) -> None:
    from headrace import __version__
    from headrace.app import Node
    from headrace.runtime.garbage import Keeper

    Keeper().start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    node = Node(settings)
    starting = loop.create_task(node.start())
    stopped = loop.create_task(stopping.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait for other nodes, however long
        starting.cancel()
        await asyncio.wait((starting,))
        return
    addresses = await starting
    where = f"data {settings.storage.data_dir}" if settings.storage.kind == "disk" else "in memory"
    http = f" http {addresses.http_url}" if addresses.http_url else ""
    took_ms = (time.time() - begun) * 1000
    print(
        f"headrace {__version__} ready: kafka {addresses.bootstrap_servers}{http} {where} ({took_ms:.0f} ms)",
        flush=True,
    )
    failed = loop.create_task(node.failed.wait())
    await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    sys.stderr.write("headrace is stopping\n")  # in one go: the log's thread writes there, too
    sys.stderr.flush()
    await node.stop()
    if node.failed.is_set():
        raise StorageError("the metadata log could not be written: see the log; what was acknowledged is kept")


def _process_start() -> float:
    """When this process began, in seconds since 1970, so that the ready line counts the interpreter too."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
            ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
            age = float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, ValueError, IndexError):
        return time.time()
