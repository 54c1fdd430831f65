"""Pages of lists in memory, in the order of names."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import dropwhile, islice
from typing import TypeVar

from gateway.api.http import Header, integer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX

T = TypeVar("T")


def page_of(
    query: dict[str, str], items: Iterable[T], name_of: Callable[[T], str], path: str
) -> tuple[list[T], str | None, tuple[Header, ...]]:
    """Sorts items into a page: (up to `limit` items after `cursor`, cursor of the next page, link to it)."""
    after = decode_cursor(query.get("cursor"))
    return _page(query, path, name_of, partial(_first_of, (item for item in items if name_of(item) > after), name_of))


def page_in_order(
    query: dict[str, str], items: Iterable[T], name_of: Callable[[T], str], path: str
) -> tuple[list[T], str | None, tuple[Header, ...]]:
    """The same for items already in the order of their names; reads none beyond the page."""
    after = decode_cursor(query.get("cursor"))
    return _page(query, path, name_of, partial(_next_of, dropwhile(lambda item: name_of(item) <= after, items)))


def _first_of(items: Iterable[T], name_of: Callable[[T], str], count: int) -> list[T]:
    return heapq.nsmallest(count, items, key=name_of)


def _next_of(items: Iterable[T], count: int) -> list[T]:
    return list(islice(items, count))


def _page(
    query: dict[str, str], path: str, name_of: Callable[[T], str], take: Callable[[int], list[T]]
) -> tuple[list[T], str | None, tuple[Header, ...]]:
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    found = take(limit + 1)
    following = encode_cursor(name_of(found[limit - 1])) if len(found) > limit else None
    kept = {name: value for name, value in query.items() if name not in ("limit", "cursor")}
    return found[:limit], following, link_to_next(path, limit, following, **kept)
