"""Publishes under idempotency keys against random histories: two gateways, one partition, a Redis that comes and goes.

Whatever is repeated, killed, flushed, consumed or purged in between: of all calls under one key one is stored, every
answer tells of that one, and a call with another payload is told so. The gateways, the names and the partition are the
real ones; Redis is a dict that may forget, and be away.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend_store.client import HybridClock
from backend_store.client.queue import EmbeddedQueue
from backend_store.model import Claim, Published, PushqError, QueueConfig
from gateway.publishing.encode import prepare
from gateway.publishing.idempotency_keys import named
from gateway.publishing.idempotent_publish import IdempotentPublish, is_replay
from gateway.publishing.reply_cache import Reply
from gateway.publishing.shared_reply_cache import Told
from push.encoding.publish_reply import runs_of_call
from push.ports import KeyOf
from push.protocol import PublishMessage
from tests.support.seeds import examples
from tests.support.world import World, queue_of, receipts_by_seq

GATEWAYS = 2
MESSAGES = 2
"""Of each call."""

keys = st.sampled_from(["k1", "k2", "k3"])
payloads = st.sampled_from(["a", "b"])
gateways = st.integers(0, GATEWAYS - 1)


class Redis:
    """What all gateways share, and may lose."""

    def __init__(self) -> None:
        self.replies: dict[bytes, Reply] = {}
        self.is_up = True


class Shared:
    """One gateway's way to it; a dead gateway has none."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.is_alive = True

    @property
    def _is_there(self) -> bool:
        return self.is_alive and self._redis.is_up

    def ask(self, claim: Claim, told: Told) -> None:
        asyncio.get_running_loop().call_soon(told, self._redis.replies.get(claim.key) if self._is_there else None)

    def finish(self, claim: Claim, reply: Reply, window_ms: int) -> None:
        if self._is_there:
            self._redis.replies[claim.key] = reply


class Idempotency(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World(config=QueueConfig(priorities=2))
        self.queue: EmbeddedQueue = queue_of(self.world)
        self.redis = Redis()
        self.shared = [Shared(self.redis) for _ in range(GATEWAYS)]
        self.onces = [self._once(shared) for shared in self.shared]
        self.sent: set[str] = set()
        self.bound: dict[str, tuple[str, Any]] = {}
        """Key → the payload and the places that an answer told."""
        self.accepted: set[str] = set()
        """Keys of which a call was answered as new."""
        self.failures: list[AssertionError] = []

    def teardown(self) -> None:
        """The partition's word, without Redis and memory: each key has one payload, and it is the one that was told."""
        try:
            self.crash(landed=True)
            self.redis.is_up = False
            for key in sorted(self.sent):
                answers = {payload: self._asked(key, payload) for payload in ("a", "b")}
                refused = [payload for payload, answer in answers.items() if isinstance(answer, PushqError)]
                assert len(refused) == 1, f"{key}: {answers}"
        finally:
            self.loop.close()

    def _once(self, shared: Shared) -> IdempotentPublish:
        return IdempotentPublish(shared, ask_seconds=0)  # type: ignore[arg-type]

    def _turn(self) -> None:
        """Lets the gateways' tasks run to where they wait."""
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    def _commit(self) -> bool:
        async def commit() -> bool:
            return self.world.commit()

        did = self.loop.run_until_complete(commit())
        self._turn()
        assert not self.failures, self.failures[0]
        return did

    def _settle(self) -> None:
        self._turn()
        while self._commit():
            pass

    def _send(self, gateway: int, key: str, payload: str, told: Any) -> None:
        # Of one payload the messages lie together, of the other they do not.
        lanes = 1 if payload == "a" else 2
        messages = [
            PublishMessage(body=msgspec.Raw(b'"%b%d"' % (payload.encode(), n)), priority=n % lanes)
            for n in range(MESSAGES)
        ]
        prepared = prepare(
            self.queue.config,
            messages,
            "json",
            now_ms=self.world.now_ms,
            clock=HybridClock(),
            encode=self.queue.blocks,
            name=partial(named, self.queue, KeyOf("somebody", key)),
        )
        self.sent.add(key)

        async def publish() -> None:
            self.onces[gateway].publish(self.queue, prepared, lambda result: told(key, payload, prepared, result))

        self.loop.run_until_complete(publish())
        self._turn()

    def _told(self, key: str, payload: str, prepared: Any, result: Published | PushqError) -> None:
        try:
            self._check(key, payload, prepared, result)
        except AssertionError as failure:
            self.failures.append(failure)  # whoever calls back would only log it
            raise

    def _check(self, key: str, payload: str, prepared: Any, result: Published | PushqError) -> None:
        if isinstance(result, PushqError):
            if result.code == "idempotency-mismatch":
                assert key not in self.bound or self.bound[key][0] != payload, f"{key} belongs to {payload}"
            else:
                assert result.code == "request-in-progress", result
            return
        places = runs_of_call(result, prepared)
        assert places is not None and sum(run.messages for run in places) == MESSAGES
        assert self.bound.setdefault(key, (payload, places)) == (payload, places)
        if not is_replay(result):
            assert key not in self.accepted, f"{key} was accepted twice"
            self.accepted.add(key)

    def _asked(self, key: str, payload: str) -> Published | PushqError:
        answers: list[Published | PushqError] = []

        def told(*answer: Any) -> None:
            self._told(*answer)
            answers.append(answer[-1])

        self._send(0, key, payload, told)
        self._settle()
        return answers[0]

    # --------------------------------------------------------------------------------------------------- what happens

    @rule(gateway=gateways, key=keys, payload=payloads)
    def send(self, gateway: int, key: str, payload: str) -> None:
        self._send(gateway, key, payload, self._told)

    @rule()
    def commit(self) -> None:
        self._commit()

    @rule()
    def reach_the_disk_half_way(self) -> None:
        self.world.committer.prepare()

    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        """The process ends: the store and both gateways."""
        for gateway in range(GATEWAYS):
            self.lose_gateway(gateway)
        self.world.crash(landed=landed)
        self.queue = queue_of(self.world)

    @rule(gateway=gateways)
    def lose_gateway(self, gateway: int) -> None:
        """It ends, and what it had asked of the store goes on."""
        self.shared[gateway].is_alive = False
        self.shared[gateway] = Shared(self.redis)
        self.onces[gateway] = self._once(self.shared[gateway])

    @rule()
    def flush_redis(self) -> None:
        self.redis.replies.clear()

    @rule(is_up=st.booleans())
    def redis_goes_or_comes(self, is_up: bool) -> None:
        self.redis.is_up = is_up

    @rule()
    def consume(self) -> None:
        self._settle()
        while (lease := self.world.take(10)) is not None:
            self.world.ack(*receipts_by_seq(lease).values())

    @rule()
    def purge(self) -> None:
        self.world.purge()
        self._settle()

    @invariant()
    def a_key_is_stored_once(self) -> None:
        assert self.world.partition.state.published_total <= MESSAGES * len(self.sent)


TestIdempotency = Idempotency.TestCase
TestIdempotency.settings = settings(max_examples=examples(25, exploring=60), stateful_step_count=40, deadline=None)
