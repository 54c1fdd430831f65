"""Tickets that gateways of one machine share: spent once, and of no tenant so many that others have none."""

from __future__ import annotations

from backend_store.client.tickets import Tickets

MOST = 100


def put(tickets: Tickets, tenant: str, number: int, *, until_ms: int = 10, now_ms: int = 0) -> bool:
    has_room = tickets.has_room(tenant, now_ms, most=MOST)
    if has_room:
        tickets.put(b"%s %d" % (tenant.encode(), number), tenant, b"opens", until_ms)
    return has_room


def test_a_ticket_is_spent_once_and_in_time() -> None:
    tickets = Tickets()
    assert put(tickets, "a", 1) and put(tickets, "a", 2)
    assert tickets.take(b"a 1", 9) == b"opens" and tickets.take(b"a 1", 9) is None
    assert tickets.take(b"a 2", 10) is None and not len(tickets)


def test_the_tickets_of_a_tenant_leave_room_for_those_of_others() -> None:
    tickets = Tickets()
    assert sum(put(tickets, "a", number) for number in range(2 * MOST)) == MOST // 2
    assert put(tickets, "b", 1) and not put(tickets, "a", 2 * MOST)
    tickets.take(b"a 0", 1)
    tickets.take(b"b 1", 1)
    assert put(tickets, "a", 2 * MOST)


def test_what_nobody_used_makes_room() -> None:
    tickets = Tickets()
    for number in range(MOST):
        put(tickets, "a", number)
    assert put(tickets, "a", MOST, now_ms=10, until_ms=20) and len(tickets) == 1
