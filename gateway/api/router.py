"""Routes a path such as `/v1/queues/{queue}/messages` to its operations, with one dictionary look-up per segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote

Handler = TypeVar("Handler")


class Match(NamedTuple, Generic[Handler]):
    path: str
    """The registered path with its variables unfilled."""
    methods: Mapping[str, Handler]
    params: list[str]


@dataclass(slots=True)
class _Node(Generic[Handler]):
    path: str = ""
    methods: dict[str, Handler] = field(default_factory=dict)
    literal: dict[str, _Node[Handler]] = field(default_factory=dict)
    variable: _Node[Handler] | None = None


class Router(Generic[Handler]):
    """A trie of paths with literal and `{variable}` segments. A literal segment takes precedence over a variable."""

    def __init__(self, routes: Iterable[tuple[str, str, Handler]]) -> None:
        """`routes` has (method, path, handler)."""
        self._root: _Node[Handler] = _Node()
        for method, path, handler in routes:
            node = self._node(path)
            node.path = path
            node.methods[method] = handler

    def _node(self, path: str) -> _Node[Handler]:
        node = self._root
        for step in path.split("/")[1:]:
            if step.startswith("{"):
                node.variable = node.variable or _Node()
                node = node.variable
            else:
                node = node.literal.setdefault(step, _Node())
        return node

    def find(self, path: str, *, quoted: str | None = None) -> Match[Handler] | None:
        """The methods of a path and the values of its variables, or None. A variable segment is never empty.

        `quoted`: the path as it was sent, which distinguishes a `/` inside a segment, `%2F`, from a separator.
        """
        steps = path.split("/") if quoted is None else [unquote(step) for step in quoted.split("/")]
        node, params = self._root, []
        for step in steps[1:]:
            following = node.literal.get(step)
            if following is None:
                following = node.variable
                if following is None or not step:
                    return None
                params.append(step)
            node = following
        return Match(node.path, node.methods, params) if node.methods else None
