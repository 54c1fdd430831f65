"""Rates that several gateways share, in a real Redis: exact, decided as one, and no trouble when it is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from statistics import median

import anyio.to_thread
import pytest
import redis

from tests.support.patience import FAR, eventually
from tests.support.redis_server import RedisServer
from throttling.decision import Charge
from throttling.redis_store import GcraRedisStorage, Take
from throttling.rules import Rule
from throttling.shared import SharedLimiter

pytestmark = pytest.mark.anyio

TENANT = Rule("tenant", quota=100, per=("tenant",))
CLOSED = Rule("closed", quota=100, per=("tenant",), is_closed_without_store=True)


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    with redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()
    return shared_redis


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def storage(server: RedisServer) -> AsyncIterator[GcraRedisStorage]:
    storage = GcraRedisStorage(server.url, seconds_max=5.0)
    yield storage
    await storage.close()


def processes(url: str, *, quota: int, seconds: float, how: str, count: int = 3) -> list[int]:
    """What each of several processes was allowed together."""
    command = [sys.executable, "-m", "tests.support.limited_process", url, str(quota), str(seconds), how]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    said = [each.communicate(timeout=60)[0].splitlines() for each in running]  # what was logged, and one number
    found = [[line for line in lines if line.isdigit()] for lines in said]
    assert all(found), [(each.returncode, lines[-20:]) for each, lines in zip(running, said, strict=True)]
    return [int(numbers[-1]) for numbers in found]


@pytest.mark.parametrize("how", ["http", "frames"])
def test_three_processes_share_a_rate_to_five_percent(server: RedisServer, how: str) -> None:
    quota, seconds = 2_000, 1.5
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        began = client.time()
        allowed = processes(server.url, quota=quota, seconds=seconds, how=how)
        # What Redis counted at last tells when the last hit was: processes start and end when they do.
        ended = client.time()
    earned = quota * ((ended[0] - began[0]) + (ended[1] - began[1]) / 1e6)
    assert sum(allowed) <= (quota + earned) * 1.01
    assert sum(allowed) >= (quota + quota * seconds) * 0.95
    assert min(allowed) > 0


async def test_hit_on_several_rules_is_counted_in_all_of_them_or_in_none(storage: GcraRedisStorage) -> None:
    wide, narrow = Rule("wide", quota=100, window_s=60), Rule("narrow", quota=3, window_s=60)
    both = [Take(wide, "t", 1, 1), Take(narrow, "t", 1, 1)]
    answers = [(await storage.take([both]))[0] for _ in range(5)]
    assert [allowed for allowed, _ in answers] == [True, True, True, False, False]
    assert [taken.took for taken in answers[-1][1]] == [0, 0]
    assert answers[-1][1][1].wait_us > 0 and answers[-1][1][0].wait_us == 0
    ((_, (left,)),) = await storage.take([[Take(wide, "t", 0, 0)]])
    assert left.remaining == 97


async def test_concurrent_hits_on_several_rules_never_count_by_half(server: RedisServer) -> None:
    long_s = 86_400  # of neither anything comes back meanwhile
    wide, narrow = Rule("wide", quota=1_000, window_s=long_s), Rule("narrow", quota=50, window_s=long_s)
    both = [Take(wide, "t", 1, 1), Take(narrow, "t", 1, 1)]
    storages = [GcraRedisStorage(server.url, seconds_max=5.0) for _ in range(4)]
    try:
        answers = await asyncio.gather(*[storages[n % 4].take([both] * 5) for n in range(40)])
        assert sum(allowed for batch in answers for allowed, _ in batch) == 50
        ((_, (left,)),) = await storages[0].take([[Take(wide, "t", 0, 0)]])
        assert left.remaining == 950
    finally:
        for each in storages:
            await each.close()


async def test_script_is_loaded_again_into_a_redis_that_forgot_it(
    storage: GcraRedisStorage, server: RedisServer
) -> None:
    assert (await storage.take([[Take(TENANT, "t", 1, 1)]]))[0][0]
    with redis.Redis.from_url(server.url) as client:
        client.script_flush()
    assert (await storage.take([[Take(TENANT, "t", 1, 1)]]))[0][0]


async def test_more_than_the_quota_is_never_allowed_and_said_to_be_so(storage: GcraRedisStorage) -> None:
    ((allowed, (taken,)),) = await storage.take([[Take(TENANT, "t", 101, 101)]])
    assert not allowed and taken.wait_us == -1


async def test_clock_of_redis_that_went_back_locks_nobody_out_for_longer_than_a_window(
    storage: GcraRedisStorage, server: RedisServer
) -> None:
    with redis.Redis.from_url(server.url) as client:
        seconds, _ = client.time()
        client.set("pushq:rate:tenant:t", (seconds + 3600) * 1_000_000)  # from a time when it was an hour later
    ((allowed, (taken,)),) = await storage.take([[Take(TENANT, "t", 1, 1)]])
    assert not allowed and 0 < taken.wait_us <= 20_000


async def test_counts_leave_redis_with_their_window(storage: GcraRedisStorage, server: RedisServer) -> None:
    await storage.take([[Take(Rule("r", quota=10, window_s=60), "t", 5, 5)]])
    with redis.Redis.from_url(server.url) as client:
        assert 29_000 < client.pttl("pushq:rate:r:t") <= 30_001


async def test_what_a_gateway_took_ahead_and_did_not_use_goes_back(server: RedisServer) -> None:
    rule = Rule("tenant", quota=1_000, window_s=60, per=("tenant",))
    charges = [Charge(rule, "t", 1)]
    limiter = SharedLimiter(GcraRedisStorage(server.url), seconds_max=5.0)
    try:
        for _ in range(20):
            assert (limiter.hit(charges) or await limiter.ask(charges)).allowed
        storage = GcraRedisStorage(server.url, seconds_max=5.0)
        async with asyncio.timeout(5):
            while True:
                ((_, (left,)),) = await storage.take([[Take(rule, "t", 0, 0)]])
                if left.remaining >= 980:
                    break
                await asyncio.sleep(0.02)
        await storage.close()
    finally:
        await limiter.close()


async def spend(limiter: SharedLimiter, rule: Rule) -> tuple[bool, float]:
    """Whether a hit passed, and how long it took."""
    charges = [Charge(rule, "t", 1)]
    began = time.monotonic()
    outcome = limiter.hit(charges) or await limiter.ask(charges)
    return outcome.allowed, time.monotonic() - began


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_redis_that_is_gone_costs_one_bounded_wait_and_each_rule_does_as_it_says(
    own_redis: RedisServer, how: str
) -> None:
    limiter = SharedLimiter(GcraRedisStorage(own_redis.url, seconds_max=0.2), seconds_max=0.2, probe_seconds=0.1)
    try:
        assert (await spend(limiter, TENANT))[0] and (await spend(limiter, CLOSED))[0]
        await anyio.to_thread.run_sync(own_redis.kill if how == "killed" else own_redis.freeze)
        together = await asyncio.gather(*[spend(limiter, TENANT) for _ in range(50)])
        await eventually(lambda: limiter.is_store_away)
        after = [await spend(limiter, TENANT) for _ in range(20)]
        assert all(allowed for allowed, _ in (*together, *after))
        assert max(seconds for _, seconds in together) < FAR * 0.2
        assert median(seconds for _, seconds in after) < 0.05
        refused = limiter.hit([Charge(CLOSED, "t", 1)])
        assert refused is not None and not refused.allowed and refused.is_store_away
        await anyio.to_thread.run_sync(own_redis.start if how == "killed" else own_redis.thaw)
        await eventually(lambda: not limiter.is_store_away)
        assert (await spend(limiter, CLOSED))[0]
        assert limiter.store_away_total == 1
    finally:
        await limiter.close()


async def test_gateway_alone_still_holds_everybody_to_the_rate(own_redis: RedisServer) -> None:
    limiter = SharedLimiter(GcraRedisStorage(own_redis.url, seconds_max=0.2), seconds_max=0.2)
    slow = Rule("slow", quota=5, window_s=60)
    try:
        own_redis.kill()
        assert sum([(await spend(limiter, slow))[0] for _ in range(20)]) == 5
    finally:
        await limiter.close()
