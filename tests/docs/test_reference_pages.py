"""The tables of the reference pages are those of the code, and the page of errors has a place for each code."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from push.problems import KINDS
from tests.support.reference_tables import REFERENCE, Table, rewritten, tables

PAGES = (
    "close-codes.md",
    "configuration.md",
    "errors.md",
    "http-api.md",
    "limits.md",
    "metrics.md",
    "queue-settings.md",
    "usage-schema.md",
    "websocket.md",
)


@pytest.fixture(scope="module")
def made() -> Mapping[str, dict[str, Table]]:
    return tables()


def test_every_page_with_tables_is_compared(made: Mapping[str, dict[str, Table]]) -> None:
    assert sorted(made) == list(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_the_tables_of_the_code(page: str, made: Mapping[str, dict[str, Table]]) -> None:
    text = (REFERENCE / page).read_text()
    assert text == rewritten(text, made[page]), "write them anew: python -m tests.support.reference_tables"


def test_every_error_has_a_section_that_its_type_leads_to() -> None:
    headings = re.findall(r"^## ([a-z-]+)$", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    assert headings == list(KINDS)


def test_table_below_another_heading_is_left_alone() -> None:
    page = "# Page\n\n## One\n\nwords\n\n| old |\n| --- |\n\n## Two\n\n| kept |\n"
    assert rewritten(page, {"One": ["| new |", "| --- |"]}) == page.replace("old", "new")
    with pytest.raises(KeyError):
        rewritten(page, {"Three": []})
