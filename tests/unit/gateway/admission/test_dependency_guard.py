"""The guard of a dependency: places, deadlines, retries, and that dependencies do not touch each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from backend_store.model import NotFound, Unavailable
from gateway.admission.dependency_guard import Guard, Guards, GuardSettings
from gateway.observability.metrics.dependencies import families

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def guard_of(clock: Clock | None = None, settings: GuardSettings = GuardSettings()) -> Guard:  # noqa: B008
    return Guard("redis", settings, clock_ms=clock or Clock(), draw=lambda: 0.0)


async def answers() -> str:
    return "pong"


async def breaks() -> str:
    raise ConnectionResetError("connection reset")


async def stalls() -> str:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def refused(guard: Guard, do: Callable[[], Awaitable[str]], deadline_s: float = 0.01) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await guard.call(do, deadline_s=deadline_s)
    return caught.value


@asynccontextmanager
async def tcp_server(*, talks: bool) -> AsyncIterator[int]:
    """A server of its own that answers each connection, or takes it and says nothing."""
    quiet = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if talks:
            writer.write(b"pong\n")
        else:
            await quiet.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        quiet.set()
        server.close()
        await server.wait_closed()


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.readline()
    finally:
        writer.close()


# ------------------------------------------------------------------------------------------------------ outcomes


async def test_an_answer_passes_untouched() -> None:
    guard = guard_of()
    assert await guard.call(answers, deadline_s=1) == "pong"
    assert guard.calls["ok"] == 1


async def test_a_stalled_call_ends_at_its_deadline() -> None:
    guard = guard_of()
    error = await refused(guard, stalls)
    assert (error.code, error.detail) == ("unavailable", "redis did not answer within 0.01 s")
    assert guard.calls["timed_out"] == 1


async def test_a_broken_connection_is_unavailable_and_names_the_dependency() -> None:
    guard = guard_of()
    assert (await refused(guard, breaks)).detail == "redis: connection reset"
    assert guard.calls["failed"] == 1


async def test_a_refusal_by_the_dependency_is_an_answer() -> None:
    guard = guard_of()

    async def refuses() -> str:
        raise NotFound("no such key")

    for _ in range(30):
        with pytest.raises(NotFound):
            await guard.call(refuses, deadline_s=1)
    assert guard.state == "closed"


async def test_our_own_mistake_passes_untouched() -> None:
    async def wrong() -> str:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        await guard_of().call(wrong, deadline_s=1)


# ------------------------------------------------------------------------------------------------------- circuit


async def test_an_open_circuit_refuses_without_a_call_and_says_when_to_come_back() -> None:
    clock = Clock()
    guard = guard_of(clock)
    for _ in range(20):
        await refused(guard, breaks)
    asked_now = 0

    async def counted() -> str:
        nonlocal asked_now
        asked_now += 1
        return "pong"

    error = await refused(guard, counted)
    assert (asked_now, error.retry_after_ms, guard.state) == (0, 1_000, "open")
    clock.now_ms += 1_000
    assert await guard.call(counted, deadline_s=1) == "pong"
    assert guard.state == "closed"


async def test_a_probe_whose_caller_leaves_does_not_keep_the_circuit_from_the_next() -> None:
    clock = Clock()
    guard = guard_of(clock)
    for _ in range(20):
        await refused(guard, breaks)
    clock.now_ms += 1_000
    probing = asyncio.create_task(guard.call(stalls, deadline_s=60))
    await asyncio.sleep(0)
    assert guard.state == "half_open"
    probing.cancel()
    await asyncio.wait([probing])
    assert guard.calls["abandoned"] == 1
    assert await guard.call(answers, deadline_s=1) == "pong"


async def test_a_stalled_dependency_opens_its_own_circuit_and_leaves_the_others_alone() -> None:
    guards = Guards()
    async with tcp_server(talks=False) as stalled, tcp_server(talks=True) as well:
        slow, fast = guards.guard("stalled"), guards.guard("well")
        held = [asyncio.create_task(refused(slow, lambda: asked(stalled), 0.2)) for _ in range(40)]
        for _ in range(40):
            assert await fast.call(lambda: asked(well), deadline_s=5) == b"pong\n"
        await asyncio.gather(*held)
    assert (slow.state, fast.state) == ("open", "closed")
    assert fast.calls == {"ok": 40}


# -------------------------------------------------------------------------------------------------------- places


async def test_calls_above_the_places_wait_and_above_the_waiting_room_are_refused() -> None:
    guard = guard_of(settings=GuardSettings(at_once_max=2, waiting_max=1))
    go = asyncio.Event()
    running = 0

    async def counted() -> str:
        nonlocal running
        running += 1
        assert running <= 2
        await go.wait()
        running -= 1
        return "done"

    calls = [asyncio.create_task(guard.call(counted, deadline_s=5)) for _ in range(3)]
    await asyncio.sleep(0)
    error = await refused(guard, counted)
    assert error.detail == "redis is busy: 2 calls are in progress and 1 are waiting"
    go.set()
    assert await asyncio.gather(*calls) == ["done"] * 3
    assert guard.calls == {"ok": 3, "full": 1}


async def test_who_waits_for_a_place_in_vain_does_not_count_against_the_dependency() -> None:
    guard = guard_of(settings=GuardSettings(at_once_max=1, waiting_max=100))
    holder = asyncio.create_task(guard.call(stalls, deadline_s=60))
    await asyncio.sleep(0)
    await asyncio.gather(*(refused(guard, answers) for _ in range(50)))
    assert (guard.state, guard.calls["full"]) == ("closed", 50)
    holder.cancel()
    await asyncio.wait([holder])
    assert await guard.call(answers, deadline_s=1) == "pong"


# ------------------------------------------------------------------------------------------------------- retries


async def test_only_what_is_idempotent_is_tried_again_and_only_within_the_budget() -> None:
    guard = guard_of()
    for _ in range(100):
        await guard.call(answers, deadline_s=1)
    attempts = 0

    async def once_broken() -> str:
        nonlocal attempts
        attempts += 1
        if attempts % 2:
            raise ConnectionResetError("connection reset")
        return "pong"

    await refused(guard, once_broken)
    attempts = 0
    assert await guard.call(once_broken, deadline_s=1, idempotent=True) == "pong"
    assert guard.retries_total == 1


async def test_when_everything_fails_a_tenth_more_is_asked() -> None:
    guard = guard_of(settings=GuardSettings(failures=(ConnectionError,)))
    attempts = 0

    async def counted() -> str:
        nonlocal attempts
        attempts += 1
        raise ConnectionResetError("connection reset")

    for _ in range(15):
        with pytest.raises(Unavailable):
            await guard.call(counted, deadline_s=1, idempotent=True)
    assert attempts == 16


# ------------------------------------------------------------------------------------------------------- metrics


async def test_the_series_tell_outcomes_state_and_how_long_it_took() -> None:
    guards = Guards()
    guard = guards.guard("redis")
    await guard.call(answers, deadline_s=1)
    for _ in range(19):
        await refused(guard, breaks)
    samples = {
        (sample.name, sample.labels.get("outcome", "")): sample.value
        for family in families(guards)
        for sample in family.samples
    }
    assert samples["pushq_dependency_calls_total", "ok"] == 1
    assert samples["pushq_dependency_calls_total", "failed"] == 19
    assert samples["pushq_dependency_state", ""] == 2
    assert samples["pushq_dependency_seconds_count", ""] == 20
