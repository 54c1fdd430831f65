"""The leases that one gateway holds at one shard: what it knows of them, and what it is to be told.

They end by the gateway's own receipts, by those of other callers, by their deadlines, and with the gateway. They also
go to another gateway, with the session of a client that went there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import Detached
from backend_store.core.ready.attempt_policy import Outcome
from backend_store.model import PushqError
from backend_store.node.views.view import View
from backend_store.service.asked import queue_at
from backend_store.service.handing import Grant, live_bits
from backend_store.service.limits import LEASES_PER_LOOK_MAX
from backend_store.wire.store_frames import Bits, Place, of_bits, to_bits

if TYPE_CHECKING:
    from backend_store.service.visitor import Visitor

LOOK_SECONDS = 0.05
"""How soon a gateway is told that another caller settled messages of its leases."""


class _Held(NamedTuple):
    """A lease, and the bits that the gateway holds as far as it knows."""

    grant: Grant
    lease: Lease
    bits: int

    @property
    def view(self) -> View | None:
        """None if the lease's messages are gone with their group."""
        return self.grant.queue.view_of(self.lease)


class HeldLeases:
    """See the file's first sentence. Its `Visitor` owns it, and sends the gateway what `lost` and `gone` collect."""

    def __init__(self, visitor: Visitor, store: EmbeddedStore) -> None:
        self.lost: list[tuple[str, Bits]] = []
        """Leases that have expired, to be told."""
        self.gone: list[tuple[str, Bits]] = []
        """Messages that other callers have settled, to be told."""
        self.gone_before: list[tuple[str, Bits]] = []
        """Those that are its own again: to be told before the answer that says so."""
        self._visitor = visitor
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, _Held] = {}
        """By token."""
        self._detached: dict[str, int] = {}
        """Token → bits of messages that stay leased when the gateway has ended: their clients may come by any
        gateway."""
        self._turned: dict[str, int] = {}
        """Token → bits that were acked or nacked while the shard was about to go: the next leader decides about
        these."""
        self._released = self._accounted = 0
        self._look: asyncio.TimerHandle | None = None
        self._looking: Iterator[str] | None = None
        """The leases that a look has not come to yet; None while no look is in progress."""

    def __contains__(self, token: str) -> bool:
        return token in self._held

    def bits(self, token: str) -> int:
        known = self._held.get(token)
        return 0 if known is None else known.bits

    # ---------------------------------------------------------------------------------------- coming and going

    def remember(self, grant: Grant, lease: Lease) -> None:
        self._held[lease.token] = _Held(grant, lease, lease.bits)

    def arrive(self, held: list[tuple[Place, str, Bits]]) -> list[tuple[Place, str]]:
        """The gateway has come back, and holds these leases. Returns those that are not known here."""
        kept = {token: to_bits(bits) for _, token, bits in held}
        for token, known in list(self._held.items()):
            live, mine = live_bits(known.lease) & known.bits, kept.get(token, 0)
            _take_back(known, live & ~mine, is_unsent=True)
            self._tell_gone(token, mine & ~live)  # the lost connection may have told it before, or not
            self._note(token, mine & live)
        places = {token: place for place, token, _ in held}
        for token, view in self._store.node.kept_at.pop(self._visitor.name, {}).items():
            if (restored := view.core.leases.get(token)) is not None:
                self._take_up(view, restored, places.get(token), kept.get(token, 0))
        return [(place, token) for place, token, _ in held if token not in self._held]

    def _take_up(self, view: View, lease: Lease, place: Place | None, kept: int) -> None:
        """Resumes a lease from before this process led. Messages that the gateway has stay leased to it; messages that
        have not reached it are with no consumer, and need not wait for the visibility timeout."""
        parts = [part for part in lease.parts() if part.gateway == self._visitor.name]
        live = sum(part.bits for part in parts)
        for part in parts:
            if unheard := part.bits & ~kept:
                _free(view, part, unheard, is_unsent=True)
        if place is None or not live & kept:
            return
        try:
            grant = Grant(self._visitor, place, queue_at(self._store, place), 0)
        except PushqError:
            return  # the queue is deleted, which ends its leases
        for part in parts:
            part.holder = grant
        self._held[lease.token] = _Held(grant, lease, live & kept)
        self._tell_gone(lease.token, kept & ~live)

    def forget(self) -> None:
        """The gateway has ended: its messages are ready again, and the attempts count."""
        for token, known in list(self._held.items()):
            live, stays = live_bits(known.lease) & known.bits, self._detached.get(token, 0)
            if (view := _pass_to_nobody(known, live & stays)) is not None:
                view.partition.ride_along()
            _take_back(known, live & ~stays, is_unsent=False)
        self._held.clear()
        self._detached.clear()
        if self._look is not None:
            self._look.cancel()

    def hand_over(self) -> None:
        """The process leads no longer: the next leader learns of leases in memory by their holders, and must not return
        these with the gateway either."""
        for token, bits in self._detached.items():
            known = self._held[token]
            if not known.lease.number:
                _pass_to_nobody(known, bits & known.bits)

    # -------------------------------------------------------------------------------------- at the gateway's request

    def let_go(self, verb: str, grouped: Mapping[str, int], reason: str | None) -> None:
        """Ends leases without a receipt: return, unsent or undeliverable."""
        for token, bits in grouped.items():
            known = self._held.get(token)
            if known is None or (view := known.view) is None:
                continue
            here = bits & known.bits & ~self._turned.get(token, 0)  # others may have been taken by another gateway
            for part in list(known.lease.parts()):
                if mine := part.bits & here:
                    if verb == "undeliverable":
                        view.undeliverable(part, mine, reason)
                    else:
                        _free(view, part, mine, is_unsent=verb == "unsent")
            self._note(token, known.bits & ~bits)

    def leave_to_next(self, grouped: Mapping[str, Bits]) -> None:
        """The next leader decides about these messages: if the gateway returns them, that is void here."""
        for token, bits in grouped.items():
            if token in self._held:
                self._turned[token] = self._turned.get(token, 0) | to_bits(bits)

    def account(self, done: Mapping[str, int]) -> None:
        """The gateway's own receipts ended these messages: their answers tell it."""
        for token, bits in done.items():
            if (known := self._held.get(token)) is not None:
                self._note_accounted(known.bits & bits)
                self._note(token, known.bits & ~bits)

    # ------------------------------------------------------------------------------------- beyond this gateway

    def detach(self, grouped: Mapping[str, int]) -> None:
        """These messages stay leased when the gateway has ended; stored leases at the next leader, too."""
        for token, bits in grouped.items():
            if (known := self._held.get(token)) is not None:
                self._detached[token] = self._detached.get(token, 0) | bits
                if (view := known.view) is not None and view.core.detach(known.lease, bits & known.bits):
                    view.partition.ride_along()

    def take(
        self,
        place: Place,
        grouped: Mapping[str, int],
        others: Iterable[HeldLeases],
        done: Callable[[dict[str, int]], None],
    ) -> None:
        """Takes leases over from other gateways, whose session has come to this one. `done` gets those that it has now;
        where leases are stored, once it is stored that they are this gateway's."""
        others = [other for other in others if other is not self]
        taken: dict[str, int] = {}
        storing: set[View] = set()
        for token, bits in grouped.items():
            found = self.bits(token) & bits  # more than none if the request is a repeat
            for other in others:
                if found != bits:
                    found |= other._pass_on(token, bits & ~found, self, place)
            if found != bits:
                found |= self._take_kept(token, bits & ~found, place)
            if found:
                taken[token] = found
                if (view := self._held[token].view) is not None and view.core.policy.stores_leases:
                    storing.add(view)
        self.gone_before += [one for one in self.gone if one[0] in taken]
        self.gone = [one for one in self.gone if one[0] not in taken]
        waits = len(storing)

        def stored(result: object = None) -> None:
            nonlocal waits
            waits -= 1
            if waits <= 0:  # some may have ended meanwhile, and the gateway was told so
                held = {token: self.bits(token) & bits for token, bits in taken.items()}
                done({token: bits for token, bits in held.items() if bits})

        for view in storing:
            view.when_durable(stored)
        if not storing:
            stored()

    def _pass_on(self, token: str, bits: int, to: HeldLeases, place: Place) -> int:
        """Hands messages of a lease to another gateway. Returns those that were held."""
        known = self._held.get(token)
        if known is None or (view := known.view) is None or (queue := known.grant.queue).deleted:
            return 0
        before = to._held.get(token)
        holder = before.grant if before is not None else Grant(to._visitor, place, queue, known.grant.visibility_ms)
        passed = view.core.pass_on(known.lease, bits & known.bits, holder)
        if passed:
            to._held[token] = _Held(holder, known.lease, passed | to.bits(token))
            self._tell_gone(token, passed)
            self._note(token, known.bits & ~passed)
        return passed

    def _take_kept(self, token: str, bits: int, place: Place) -> int:
        """Takes messages over from gateways that have not come since this process leads. Returns those that were
        held."""
        found = 0
        for gateway, kept in self._store.node.kept_at.items():
            view = kept.get(token)
            lease = view.core.leases.get(token) if view is not None else None
            if view is None or lease is None:
                continue
            if (before := self._held.get(token)) is not None:
                holder = before.grant
            else:
                holder = Grant(self._visitor, place, queue_at(self._store, place), 0)
            theirs = sum(part.bits for part in lease.parts() if part.gateway == gateway)
            if passed := view.core.pass_on(lease, theirs & bits, holder):
                self._held[token] = _Held(holder, lease, passed | self.bits(token))
                found |= passed
        return found

    # ------------------------------------------------------------------------------------------ what the views tell

    def released(self, count: int) -> None:
        """Messages of the gateway were settled or given back, by whomever."""
        self._released += count
        self._look_soon()

    def ended(self, ended: Mapping[str, int]) -> None:
        """Leases have expired, or their messages were revoked."""
        for token, bits in ended.items():
            if (known := self._held.get(token)) is not None:
                self.lost.append((token, of_bits(bits)))
                self._note_accounted(bits)
                self._note(token, known.bits & ~bits)
        self._visitor.flush_soon()

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._look_at_leases)

    def _look_at_leases(self) -> None:
        """Tells the gateway which of its messages other callers have settled: else its consumers' credit would stay
        taken. It may hold very many, so a look is spread over turns of the loop."""
        self._look = None
        if self._looking is None:
            if self._released == self._accounted:
                return
            self._accounted = self._released
            self._looking = iter(list(self._held))
        tokens = list(islice(self._looking, LEASES_PER_LOOK_MAX))
        for token in tokens:
            if (known := self._held.get(token)) is None:
                continue
            live = live_bits(known.lease)
            if gone := known.bits & ~live:
                self.gone.append((token, of_bits(gone)))
                self._note(token, known.bits & live)
        self._visitor.flush_soon()
        if len(tokens) < LEASES_PER_LOOK_MAX:
            self._looking = None
        if self._looking is not None or self._released != self._accounted:
            self._look_soon()

    def _tell_gone(self, token: str, bits: int) -> None:
        """Messages that the gateway holds as far as it knows are not its own any more."""
        if bits:
            self.gone.append((token, of_bits(bits)))
            self._visitor.flush_soon()

    def _note(self, token: str, bits: int) -> None:
        """Sets the bits of a lease that the gateway holds as far as it knows; none ends the lease."""
        if bits:
            self._held[token] = self._held[token]._replace(bits=bits)
        else:
            del self._held[token]
            self._detached.pop(token, None)

    def _note_accounted(self, bits: int) -> None:
        """Counts messages whose end the gateway is told. During a look it is unknown whether they were counted at its
        begin: another look follows."""
        if self._looking is None:
            self._accounted += bits.bit_count()


def detach_kept(kept: Mapping[str, View], grouped: Mapping[str, int]) -> None:
    """The same for leases of a gateway that has not come since this process leads."""
    for token, bits in grouped.items():
        view = kept.get(token)
        lease = view.core.leases.get(token) if view is not None else None
        if view is not None and lease is not None and view.core.detach(lease, bits):
            view.partition.ride_along()


def return_kept(kept: Mapping[str, View], gateway: str) -> None:
    """Such a gateway has ended: its messages are ready again, and the attempts count."""
    for token, view in kept.items():
        lease = view.core.leases.get(token)
        for part in list(lease.parts()) if lease is not None else ():
            if part.gateway == gateway and part.bits:
                _free(view, part, part.bits, is_unsent=False)


def _pass_to_nobody(known: _Held, bits: int) -> View | None:
    """Has messages stay leased whatever becomes of their gateway. Returns their view; None if there are none."""
    view = known.view
    if view is None or known.grant.queue.deleted or not view.core.pass_on(known.lease, bits, Detached()):
        return None
    return view


def take_back_unsent(leases: Iterable[tuple[Grant, Lease]]) -> None:
    """Returns leases that were never sent, as their gateway has left for good: the messages are ready again."""
    for grant, lease in leases:
        _take_back(_Held(grant, lease, 0), live_bits(lease), is_unsent=True)


def _take_back(known: _Held, bits: int, *, is_unsent: bool) -> None:
    view = known.view
    if view is None or not bits or known.grant.queue.deleted:
        return
    for part in list(known.lease.parts()):
        if mine := part.bits & bits:
            _free(view, part, mine, is_unsent=is_unsent)


def _free(view: View, lease: Lease, bits: int, *, is_unsent: bool) -> None:
    """Returns messages of a lease: as never sent, or with the attempt counted."""
    view.decide_first()
    if not is_unsent and view.comes_behind(lease, partial(_free, view, lease, bits, is_unsent=False)):
        return
    if is_unsent:
        view.core.unsent(lease, bits)
        view.partition.ride_along()
        view.on_ready()
    elif view.core.give_back(lease, bits, now_ms=view.partition.steady_ms(), outcome=Outcome.RETURNED):
        view.partition.request()
