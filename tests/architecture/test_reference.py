"""The generated pages are what the declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.reference import PAGES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"docs/{name} is stale: run `make docs`"
