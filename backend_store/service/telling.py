"""Sends the definitions to a gateway on one connection: first what the gateway does not know, then every change.

A gateway that knows nothing needs everything, and for one that was away much may have changed. With many queues that
takes a while: one part is sent per turn of the loop, so that other gateways have their turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backend_store.node.node import Node
from backend_store.service.definitions import Definitions, LeftBehind, Told, in_parts
from backend_store.service.limits import DEFINITIONS_PER_FRAME_MAX, VISITOR_OUTBOX_BYTES_MAX
from backend_store.wire.store_frames import Defined, Known, pack, raw

if TYPE_CHECKING:
    from backend_store.service.serving import Link


class Telling:
    """The definitions as one connection sends them."""

    def __init__(self, node: Node, link: Link, known: Known | None, on_complete: Callable[[], None]):
        """`known`: what the gateway says that it knows; see `Greeting`. `on_complete` is called when the gateway has
        everything."""
        self._node = node
        self._link = link
        self._known = known
        self._on_complete = on_complete
        self._loop = asyncio.get_running_loop()
        self._told = Told()
        self._has_begun = False
        self._parts: Iterator[Definitions] | None = None
        """The parts of the initial definitions that are still to be sent; None before and after."""
        self._goes_on = False
        """Whether the gateway knows the rest from an earlier connection."""
        self._waits_for_room = self._is_over = False

    @property
    def is_midway(self) -> bool:
        """Whether the gateway has only a part so far: it could not use any other frame yet."""
        return self._parts is not None

    def definitions(self) -> None:
        """Sends what the gateway does not know, before any frame that depends on it."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        elif not self.is_midway:
            self._go_on(self._told.news)
        else:
            self._keep_up()

    def documents(self) -> None:
        """As `definitions`, for documents alone."""
        if self.is_midway:
            self._keep_up()
        elif self._has_begun:
            self._go_on(self._told.rows)

    def room(self) -> None:
        """Called when the connection takes bytes again."""
        if self._waits_for_room:
            self._waits_for_room = False
            self._say_part()

    def break_off(self) -> None:
        """Stops sending the initial definitions: the next connection starts again."""
        self._is_over = True

    def _begin(self) -> None:
        changes = self._told.go_on(self._node, self._known) if self._known is not None else None
        self._goes_on = changes is not None
        whole = changes if changes is not None else self._told.begin(self._node)
        if self._known is None or whole.size <= DEFINITIONS_PER_FRAME_MAX:
            self._say(whole, goes_on=self._goes_on)
            return
        self._parts = in_parts(whole)
        self._say_part()

    def _say_part(self) -> None:
        if self._is_over or self._parts is None:
            return
        if self._link.waiting_bytes >= VISITOR_OUTBOX_BYTES_MAX:
            self._waits_for_room = True
            return
        if not self._keep_up():
            return
        if (part := next(self._parts, None)) is None:
            news = self._told.news(self._node)
            if news is None or news.size <= DEFINITIONS_PER_FRAME_MAX:
                self._say_last(news)
                return
            self._parts = in_parts(news)  # much has changed meanwhile
            part = next(self._parts)
        self._link.send(pack(Defined(False, raw(part), is_last=False, goes_on=self._goes_on)))
        self._loop.call_soon(self._say_part)

    def _say_last(self, news: Definitions | None) -> None:
        """Sends the last part, also where nothing has changed meanwhile."""
        self._parts = None
        self._say(news or Definitions(rotation=self._node.metadata.data_keys.rotation))
        self._on_complete()

    def _keep_up(self) -> bool:
        """Notes changes made while the parts are sent; they follow, however many they are."""
        return self._tried(lambda: self._told.keep_up(self._node))

    def _go_on(self, ask: Callable[[Node], Definitions | None]) -> None:
        def say() -> None:
            if (news := ask(self._node)) is not None:
                self._say(news)

        self._tried(say)

    def _tried(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except LeftBehind:  # on its next connection the gateway gets everything
            self._link.abort()
            return False
        return True

    def _say(self, news: Definitions, *, goes_on: bool = False) -> None:
        self._link.send(pack(Defined(False, raw(news), goes_on=goes_on, known=self._told.known(self._node))))
