"""Figures say which server they are of: the commit, the day, the machine, and whether queues were encrypted."""

from __future__ import annotations

import datetime
import re

import pytest

from tests.bench.page import PAGE, PUBLISHED, shown

STAMP = re.compile(
    r"Measured on (?P<date>\d{4}-\d\d-\d\d) at commit `([0-9a-f]{12}|[0-9a-f]{40})`(?P<changed> with changes)?, "
    r"(?:queues encrypted|nothing encrypted) at rest(?:, those of duties only where a line says so)?\. "
    r".+, \d+ cores \(.+\), \d+ GiB, .+, Linux [\d.]+, Python [\d.]+, .+; .+\."
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_begin_with_what_they_are_of(name: str) -> None:
    first = shown(PAGE.read_text(), name).split("\n", 1)[0]
    found = STAMP.fullmatch(first)
    assert found is not None, first
    assert found["changed"] is None, "what is published can be measured again: it is that of a commit"
    assert datetime.date.fromisoformat(found["date"]) <= datetime.datetime.now(datetime.UTC).date()
