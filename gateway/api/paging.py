"""A page of a list that lies in memory, in the order of its names."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.http import Header, integer
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX

T = TypeVar("T")


def page_of(
    query: dict[str, str], items: Iterable[T], name_of: Callable[[T], str], path: str
) -> tuple[list[T], str | None, tuple[Header, ...]]:
    """The items behind `cursor`, `limit` at most; where the next page begins, and the link to it."""
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after = decode_cursor(query.get("cursor"))
    found = heapq.nsmallest(limit + 1, (item for item in items if name_of(item) > after), key=name_of)
    following = encode_cursor(name_of(found[limit - 1])) if len(found) > limit else None
    kept = {name: value for name, value in query.items() if name not in ("limit", "cursor")}
    return found[:limit], following, link_to_next(path, limit, following, **kept)
