"""The house rules as failing tests: layers, forbidden imports, names, sizes.

An exception has to be written down here, with its reason; one that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"

# What each package may import of ours, besides itself. A dotted name allows that module only.
LAYERS = {
    "core": set(),
    "wire": {"core"},
    "group": {"core"},
    "txn": {"core"},
    "raft": {"core"},
    "swim": {"core"},
    "ring": {"core"},
    "isr": {"core"},
    "storage": {"core", "wire.batch"},
    "broker": {"core", "wire", "group", "txn", "storage", "raft", "swim", "ring", "isr"},
    "apis": {"core", "wire", "broker", "group", "txn", "storage"},
    "gateways": {"core", "wire", "broker", "apis"},
    "runtime": {"core"},
    "client": {"core"},
    "spark": {"core", "wire", "client"},
    "supervisor": {"core"},
}
# The composition root, the command line, the test tools and the generated pages may see everything.
ABOVE_THE_LAYERS = {"__init__", "__main__", "app", "cli", "embedded", "reference", "settings", "testing"}

MACHINES = {"group", "isr", "raft", "ring", "swim", "txn"}
OUTSIDE_WORLD = {"os", "socket", "time", "random", "threading", "subprocess", "signal", "select", "secrets"}
MAY_TOUCH_THE_WORLD = {"runtime", "client", "cli", "testing", "spark", "supervisor"}
MAY_AWAIT = {
    "broker",
    "apis",
    "gateways",
    "runtime",
    "client",
    "cli",
    "testing",
    "app",
    "embedded",
    "__init__",
    "supervisor",
}
NOT_IN_MACHINES = {"logging", "pathlib", "io", "sqlite3", "tempfile", "shutil", "datetime", "multiprocessing"}
MACHINES_MAY_USE = {"msgspec"}

FORBIDDEN_WORDS = {"Manager", "Helper", "Helpers", "Util", "Utils", "Impl", "Base", "Wrapper", "Data", "Info"}
FILE_LINES = 500
FUNCTION_LINES = 60
SEAM_METHODS = 10

ALLOWED_IMPORTS: dict[str, str] = {  # "path imports name" -> why
    "core/ports.py imports asyncio": "the names of a protocol and a transport, for types only",
}
ALLOWED_LONG_FILES: dict[str, str] = {}  # path -> why
ALLOWED_LONG_FUNCTIONS: dict[str, str] = {}  # "path function" -> why


class Module(NamedTuple):
    path: str  # relative to src/headrace
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path.relative_to(SOURCE).as_posix(), text, ast.parse(text)))
    return tuple(found)


def imports(module: Module) -> Iterator[str]:
    """Full names of all that a module imports, inside functions and for types too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_within(name: str, allowed: set[str]) -> bool:
    return any(name == item or name.startswith(item + ".") for item in allowed)


def broken(rule: Iterator[str], allowed: dict[str, str]) -> list[str]:
    """What breaks a rule without leave, and leave that nothing needs."""
    found = list(dict.fromkeys(rule))
    unused = [f"no longer needed: {item}" for item in allowed if item not in found]
    return [item for item in found if item not in allowed] + unused


def forbidden_imports() -> Iterator[str]:
    for module in modules():
        package = module.package
        for name in imports(module):
            top = name.split(".")[0]
            ours = name.removeprefix("headrace.") if top == "headrace" else None
            machine_only = package in MACHINES and ours is None and top not in MACHINES_MAY_USE
            if (
                (ours is not None and package in LAYERS and not is_within(ours, {package, *LAYERS[package]}))
                or (top in OUTSIDE_WORLD and package not in MAY_TOUCH_THE_WORLD)
                or (top == "asyncio" and package not in MAY_AWAIT)
                or (top == "pyspark" and package != "spark")
                or (machine_only and (top in NOT_IN_MACHINES or top not in sys.stdlib_module_names))
            ):
                yield f"{module.path} imports {name}"


def long_functions() -> Iterator[str]:
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{module.path} {node.name}"


def test_every_package_imports_only_from_the_layers_below() -> None:
    assert broken(forbidden_imports(), ALLOWED_IMPORTS) == []


@pytest.mark.parametrize("package", ["pyspark_headrace", "pyspark_headracelake"])
def test_what_every_planner_of_spark_imports_is_light(package: str) -> None:
    tree = ast.parse((ROOT / "src" / package / "__init__.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node) for node in at_once} == {
        "from __future__ import annotations",
        "from typing import TYPE_CHECKING",
        "from pyspark.sql.datasource import DataSource",
    }


def test_every_package_has_a_layer() -> None:
    assert {module.package for module in modules()} - set(LAYERS) - ABOVE_THE_LAYERS == set()


def test_files_are_small() -> None:
    long = (module.path for module in modules() if len(module.text.splitlines()) > FILE_LINES)
    assert broken(long, ALLOWED_LONG_FILES) == []


def test_functions_are_small() -> None:
    assert broken(long_functions(), ALLOWED_LONG_FUNCTIONS) == []


def test_names_say_what_a_thing_is() -> None:
    classes = (
        f"{module.path} {node.name}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and FORBIDDEN_WORDS & set(re.findall(r"[A-Z][a-z0-9]*", node.name))
    )
    files = (module.path for module in modules() if FORBIDDEN_WORDS & {Path(module.path).stem.capitalize()})
    assert [*classes, *files] == []


def test_nobody_waits_in_a_way_that_swallows_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 does, now and then: use `asyncio.timeout`."""
    assert [module.path for module in modules() if "asyncio.wait_for(" in module.text] == []


def test_seams_have_few_methods() -> None:
    wide = [
        f"{module.path} {node.name}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
        and sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body) > SEAM_METHODS
    ]
    assert wide == []


def test_every_module_says_what_it_is() -> None:
    assert [module.path for module in modules() if module.text.strip() and not ast.get_docstring(module.tree)] == []


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_packages_are_named_and_not_addressed(name: str) -> None:
    """Where packages come from is the business of whoever installs them."""
    assert re.findall(r"https?://\S+", (ROOT / name).read_text(encoding="utf-8")) == []
