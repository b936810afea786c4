"""What the docs take from the code is current; ``python -m scripts.render_docs`` renews it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.render_docs import REGION, RENDERERS, pages, rendered

PAGES = list(pages())


@pytest.mark.spec("FR-098")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_generated_region_is_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert rendered(text) == text, f"{page.name} is out of date: run python -m scripts.render_docs"


def test_everything_that_can_be_rendered_is_shown_once() -> None:
    shown = [region["name"] for page in PAGES for region in REGION.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(RENDERERS)
