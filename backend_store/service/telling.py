"""What a gateway is told of the definitions by one connection: what it does not know, and from then on what changes.

A gateway that knows nothing has to hear of everything, and of one that was away much may have changed. With many queues
that takes a while: a turn's worth is said at a time, and others have their turns meanwhile.
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
    """See the file's first sentence."""

    def __init__(self, node: Node, link: Link, known: Known | None, on_complete: Callable[[], None]):
        """`known`: what the gateway knows by its own word; see `Greeting`. `on_complete`: it was told everything."""
        self._node = node
        self._link = link
        self._known = known
        self._on_complete = on_complete
        self._loop = asyncio.get_running_loop()
        self._told = Told()
        self._has_begun = False
        self._parts: Iterator[Definitions] | None = None
        """What is still to be said of all that it does not know."""
        self._goes_on = False
        """Whether it knows the rest by an earlier connection."""
        self._waits_for_room = self._is_over = False

    @property
    def is_midway(self) -> bool:
        """The gateway has heard of a part: of anything else it could make nothing."""
        return self._parts is not None

    def definitions(self) -> None:
        """Says what the gateway does not know, before anything that follows from it."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        elif not self.is_midway:
            self._go_on(self._told.news)
        else:
            self._keep_up()

    def documents(self) -> None:
        """As above, of documents alone."""
        if self.is_midway:
            self._keep_up()
        elif self._has_begun:
            self._go_on(self._told.rows)

    def room(self) -> None:
        """The connection takes bytes again."""
        if self._waits_for_room:
            self._waits_for_room = False
            self._say_part()

    def break_off(self) -> None:
        """Says nothing more of everything: it is said by the next connection."""
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
        """It is said also where nothing has changed meanwhile."""
        self._parts = None
        self._say(news or Definitions(rotation=self._node.metadata.data_keys.rotation))
        self._on_complete()

    def _keep_up(self) -> bool:
        """What changes while a lot is told comes behind it, however much it is."""
        return self._tried(lambda: self._told.keep_up(self._node))

    def _go_on(self, ask: Callable[[Node], Definitions | None]) -> None:
        def say() -> None:
            if (news := ask(self._node)) is not None:
                self._say(news)

        self._tried(say)

    def _tried(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except LeftBehind:  # by its next connection it hears of everything
            self._link.abort()
            return False
        return True

    def _say(self, news: Definitions, *, goes_on: bool = False) -> None:
        self._link.send(pack(Defined(False, raw(news), goes_on=goes_on, known=self._told.known(self._node))))
