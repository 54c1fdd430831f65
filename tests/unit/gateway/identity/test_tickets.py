"""A ticket opens once, soon, and what its key may."""

from __future__ import annotations

import dataclasses

import pytest

from backend_store.model import Overloaded, Unauthenticated
from gateway.identity.authentication import NEVER_MS, Principal
from gateway.identity.authorization import compile_scopes
from gateway.identity.tickets import TicketOffice


class Clock:
    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


PRINCIPAL = Principal("k1", "default", "key", compile_scopes(["consume:a"]), NEVER_MS, b"")


def test_a_ticket_opens_for_whom_it_was_issued() -> None:
    office = TicketOffice(Clock())
    assert office.redeem(office.issue(PRINCIPAL).text) is PRINCIPAL


def test_a_ticket_opens_once() -> None:
    office = TicketOffice(Clock())
    ticket = office.issue(PRINCIPAL)
    office.redeem(ticket.text)
    with pytest.raises(Unauthenticated):
        office.redeem(ticket.text)


def test_a_ticket_is_good_for_30_seconds() -> None:
    clock = Clock()
    office = TicketOffice(clock)
    early, late = office.issue(PRINCIPAL), office.issue(PRINCIPAL)
    assert early.expires_at_ms == clock.ms + 30_000
    clock.ms += 29_999
    office.redeem(early.text)
    clock.ms += 1
    with pytest.raises(Unauthenticated):
        office.redeem(late.text)


def test_an_unknown_ticket_opens_nothing() -> None:
    with pytest.raises(Unauthenticated):
        TicketOffice(Clock()).redeem("no-such-ticket")


def test_too_many_unused_tickets_are_refused_until_they_expire() -> None:
    clock = Clock()
    office = TicketOffice(clock, tickets_max=4)
    for _ in range(2):
        office.issue(PRINCIPAL)
    with pytest.raises(Overloaded):
        office.issue(PRINCIPAL)
    clock.ms += 30_000
    office.issue(PRINCIPAL)


def test_the_tickets_of_a_tenant_leave_room_for_those_of_others() -> None:
    """Whoever asks for tickets and uses none would else have nobody open a stream."""
    office = TicketOffice(Clock(), tickets_max=100)
    issued = [office.issue(PRINCIPAL) for _ in range(50)]
    with pytest.raises(Overloaded):
        office.issue(PRINCIPAL)
    other = dataclasses.replace(PRINCIPAL, id="k2", tenant="other")
    assert office.redeem(office.issue(other).text) is other
    office.redeem(issued[0].text)
    office.redeem(issued[1].text)
    office.issue(PRINCIPAL)


def test_no_two_tickets_are_alike() -> None:
    office = TicketOffice(Clock())
    assert len({office.issue(PRINCIPAL).text for _ in range(100)}) == 100


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_ticket_is_good_for_as_long_while_the_clock_is_set(hours: int) -> None:
    """With one that was set back all of them stayed good, and in the way of new ones, until it had caught up."""
    clock, steady = Clock(), Clock()
    office = TicketOffice(clock, steady_ms=steady, tickets_max=4)
    early, late = office.issue(PRINCIPAL), office.issue(PRINCIPAL)
    clock.ms += hours * 3_600_000
    office.redeem(early.text)
    steady.ms += 30_000
    with pytest.raises(Unauthenticated):
        office.redeem(late.text)
    for _ in range(2):
        office.issue(PRINCIPAL)
    steady.ms += 30_000
    assert office.issue(PRINCIPAL).expires_at_ms == clock.ms + 30_000
