"""Pages of a list: each item once, whatever order it is in, and of one in order no more than the page is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from gateway.api.paging import page_in_order, page_of

NAMES = [f"{number:02d}" for number in range(10)]


def pages(page: Callable[..., tuple[list[str], str | None, object]], items: Callable[[], Iterable[str]]) -> list[str]:
    found: list[str] = []
    query = {"limit": "4"}
    while True:
        names, following, _ = page(query, items(), str, "/v1/things")
        found += names
        if following is None:
            return found
        query = {"limit": "4", "cursor": following}


@pytest.mark.parametrize(("page", "items"), [(page_of, reversed), (page_in_order, iter)])
def test_pages_have_each_item_once(page: Callable[..., object], items: Callable[[list[str]], Iterable[str]]) -> None:
    assert pages(page, lambda: items(NAMES)) == NAMES  # type: ignore[arg-type]


def test_of_a_list_in_order_no_more_than_the_page_is_looked_at() -> None:
    seen: list[str] = []

    def items() -> Iterator[str]:
        for name in NAMES:
            seen.append(name)
            yield name

    names, following, _ = page_in_order({"limit": "3"}, items(), str, "/v1/things")
    assert names == NAMES[:3] and following is not None and seen == NAMES[:4]
