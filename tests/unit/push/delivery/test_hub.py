"""The hub's housekeeping goes on whatever happens to one session."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from push.core.resume import Parked
from push.delivery import hub as push_hub
from push.delivery.hub import Hub, binary_frame, text_frame


@pytest.mark.anyio
async def test_a_fault_in_one_beat_does_not_end_the_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the leases of sessions that were cut would never return."""
    monkeypatch.setattr(push_hub, "HOUSEKEEPING_SECONDS", 0.001)
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    faulty: Any = object()
    hub.waiting.add(faulty)
    hub.parked.park(Parked("first", "somebody", 0))
    await asyncio.sleep(0.02)
    hub.parked.park(Parked("second", "somebody", 0))
    async with asyncio.timeout(5):
        while len(hub.parked):  # noqa: ASYNC110 - what is waited for is the hub's own beat
            await asyncio.sleep(0.001)
    await hub.close()


@pytest.mark.anyio
async def test_whoever_connects_during_the_farewells_gets_one_too() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    said: list[str] = []

    def member(name: str, *, brings: str | None = None) -> Any:
        def bye(retry_ms: int) -> None:
            said.append(name)
            del hub.sessions[name]
            if brings is not None:
                hub.sessions[brings] = member(brings)

        return SimpleNamespace(bye=bye)

    hub.sessions["early"] = member("early", brings="late")
    await hub.drain()
    assert said == ["early", "late"] and not hub.sessions
    await hub.close()


@pytest.mark.anyio
async def test_a_farewell_that_fails_keeps_no_other_from_its_own() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    said: list[str] = []

    def first(retry_ms: int) -> None:
        del hub.sessions["first"]
        raise AssertionError("a fault of ours")

    def second(retry_ms: int) -> None:
        del hub.sessions["second"]
        said.append("second")

    for name, bye in (("first", first), ("second", second)):
        hub.sessions[name] = SimpleNamespace(bye=bye)  # type: ignore[assignment]
    await hub.drain()
    assert said == ["second"]
    await hub.close()


class Known(SimpleNamespace):
    """One that readers can be kept by."""

    __hash__ = object.__hash__


@pytest.mark.anyio
async def test_a_subscription_that_fails_at_its_sessions_end_keeps_no_others_messages() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    stopped: list[str] = []

    def fail() -> None:
        raise AssertionError("a fault of ours")

    queue = Known(tenant="t", place="q")
    more = {"queue": queue, "doubt_oldest": lambda: None, "gaps_since": -1, "held": list}
    subs = {1: SimpleNamespace(stop=fail, **more), 2: SimpleNamespace(stop=lambda: stopped.append("2"), **more)}
    session: Any = Known(id="s", principal=None, subs=subs, leave=lambda what: None, hearing=SimpleNamespace(heard=1))
    for _ in subs:
        hub.readers.enter(session, queue)  # type: ignore[arg-type]
    hub.closed(session, clean=False)
    assert stopped == ["2"] and not session.subs
    await hub.close()


@pytest.mark.anyio
async def test_a_consumer_that_fails_keeps_no_other_from_hearing_that_its_queue_is_gone() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    told: list[str] = []

    def end(name: str, sub: Any, error: object) -> None:
        told.append(name)
        assert len(told) > 1, "a fault of ours"

    queue: Any = Known(name="q", gone="gone")
    for name in ("one", "two"):
        sub = SimpleNamespace(queue=queue)
        session: Any = Known(subs={1: sub}, end=partial(end, name))
        hub.readers.enter(session, queue)
    hub.queue_deleted(queue)
    assert sorted(told) == ["one", "two"]
    await hub.close()


def reader(name: str, *, blocked_s: float, closed: list[str]) -> Any:
    wire = SimpleNamespace(is_writable=not blocked_s, blocked_seconds=lambda: blocked_s)
    return SimpleNamespace(wire=wire, close=lambda code, reason: closed.append(f"{name} {int(code)}"))


@pytest.mark.anyio
async def test_who_has_read_nothing_for_10_s_is_closed_as_slow_and_nobody_else() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000, unread_s=0)
    closed: list[str] = []
    for blocked_s in (9.9, 10.1):
        session = reader(f"{blocked_s}", blocked_s=blocked_s, closed=closed)
        session.heard_ms, session.ping_at_ms, session.ping = hub.now_ms, hub.now_ms, lambda: None
        hub.sessions[f"{blocked_s}"] = session
    hub._check_alive()
    assert closed == ["10.1 4001"]
    hub.sessions.clear()
    await hub.close()


@pytest.mark.anyio
async def test_who_does_not_connect_in_5_s_is_told_and_closed_and_nobody_else() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    closed: list[str] = []
    waiting: Any = []
    for silent_ms in (5_000, 5_001):
        session = reader(f"{silent_ms}", blocked_s=0.0, closed=closed)
        session.heard_ms = hub.now_ms - silent_ms
        session.error = lambda _id, problem, name=silent_ms: closed.append(f"{name} {problem.code}")
        waiting.append(session)
    hub.waiting = waiting
    hub._check_waiting()
    assert closed == ["5001 unauthenticated", "5001 4002"]
    await hub.close()


@pytest.mark.anyio
async def test_who_is_silent_is_pinged_within_25_s_and_closed_after_35() -> None:
    now_ms = [1_000_000]
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: now_ms[0], unread_s=0)
    said: dict[str, list[tuple[int, str]]] = {"silent": [], "answers": []}

    def passed_s() -> int:
        return (now_ms[0] - 1_000_000) // 1_000

    def member(name: str) -> Any:
        session = reader(name, blocked_s=0.0, closed=[])
        session.heard_ms, session.ping_at_ms = hub.now_ms, hub.next_ping_ms()

        def ping() -> None:
            said[name].append((passed_s(), "ping"))
            if name == "answers":
                session.heard_ms = hub.now_ms

        def close(code: int, reason: str) -> None:
            said[name].append((passed_s(), f"{int(code)}"))
            del hub.sessions[name]

        session.ping, session.close = ping, close
        return session

    for name in said:
        hub.sessions[name] = member(name)
    for _ in range(119):
        now_ms[0] += 1_000
        hub._beat()
        hub._check_alive()
    (first, ping), *others, (end, code) = said["silent"]
    assert ping == "ping" and 20 <= first <= 25, "a fifth earlier at most: not all at once"
    assert code == "4002" and 35 < end <= 37 and {what for _, what in others} <= {"ping"}
    assert {what for _, what in said["answers"]} == {"ping"} and 4 <= len(said["answers"]) <= 5
    hub.sessions.clear()
    await hub.close()


@pytest.mark.anyio
async def test_where_memory_is_short_the_slowest_in_a_hundred_are_closed_and_nobody_who_reads() -> None:
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    closed: list[str] = []
    for n in range(150):
        hub.sessions[f"reads {n}"] = reader(f"reads {n}", blocked_s=0.0, closed=closed)
    for n, blocked_s in enumerate((0.5, 4.0, 9.0, 6.0)):
        hub.sessions[f"slow {n}"] = reader(f"slow {n}", blocked_s=blocked_s, closed=closed)
    assert hub.close_slowest() == 2
    assert closed == ["slow 2 4001", "slow 3 4001"]
    for name in ("slow 1", "slow 2", "slow 3"):
        del hub.sessions[name]
    assert hub.close_slowest() == 0, "half a second is not slow"
    await hub.close()


@pytest.mark.anyio
async def test_who_slept_ends_no_session_for_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them had been silent for as long as the machine slept, and none could have been heard."""
    monkeypatch.setattr(push_hub, "HOUSEKEEPING_SECONDS", 0.001)
    now_ms = [1_000_000]
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: now_ms[0])
    pinged: list[int] = []
    session: Any = SimpleNamespace(
        heard_ms=hub.now_ms,
        ping_at_ms=hub.now_ms + 8_000,
        listen=lambda now_ms, unread_ms: False,
        wire=SimpleNamespace(is_writable=True, blocked_seconds=lambda: 0),
        ping=lambda: pinged.append(now_ms[0]),
        close=lambda *why: pytest.fail(str(why)),
    )
    hub.sessions["s"] = session
    hub.parked.park(Parked("cut", "somebody", hub.awake_ms() + 10_000))

    async def passed(ms: int) -> None:
        now_ms[0] += ms
        async with asyncio.timeout(5):
            while hub.now_ms != hub.awake_ms():  # noqa: ASYNC110 - what is waited for is the hub's own beat
                await asyncio.sleep(0.001)

    await passed(3_600_000)
    assert not pinged and len(hub.parked) == 1
    for _ in range(3):
        await passed(4_000)
    await passed(1)
    assert pinged and not len(hub.parked), "the time in which it is awake counts as ever"
    hub.sessions.clear()
    await hub.close()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_a_frame_is_what_the_library_makes_of_a_message(size: int) -> None:
    payload = b"%" * size
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)
    assert binary_frame(payload) == Frame(Opcode.BINARY, payload).serialize(mask=False)
