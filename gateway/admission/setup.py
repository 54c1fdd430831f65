"""Builds a process's throttle from its settings: rate rules, the store of their counters, and caps on connections."""

from __future__ import annotations

from backend_store.client import Store
from backend_store.model import Quotas
from gateway.admission.rate_rules import rules_of
from gateway.admission.throttle import NO_QUOTAS, Throttle
from gateway.config.settings import Limits, Settings
from throttling.census import Caps, Census
from throttling.limiter import Limiter, MemoryLimiter


class NoRedisLibrary(Exception):
    """`throttling.store` is redis or `redis.url` is set, and the packages for it are not installed."""


def make_throttle(store: Store, settings: Settings, limiter: Limiter | None = None) -> Throttle:
    """Makes the throttle. Must be called on the event loop that will use it. Raises `NoRedisLibrary`."""
    queues = store.metadata.queues

    def quotas_of(tenant: str) -> Quotas:
        found = store.tenant(tenant)
        return NO_QUOTAS if found is None else found.quotas

    return Throttle(
        _limiter(settings) if limiter is None else limiter,
        rules_of(settings.throttling.rules),
        _census(settings.limits),
        quotas_of=quotas_of,
        has_queue=lambda tenant, name: (tenant, name) in queues,
    )


def _limiter(settings: Settings) -> Limiter:
    if settings.throttling.store == "memory":
        return MemoryLimiter()
    try:
        # Imported here: counting in memory does not pay for it.
        from throttling.redis_store import GcraRedisStorage
        from throttling.shared import SharedLimiter
    except ImportError as error:
        detail = f"throttling.store is redis, which needs {error.name}: pip install 'pushq[redis]'"
        raise NoRedisLibrary(detail) from None
    return SharedLimiter(GcraRedisStorage(settings.redis.address()))


def _census(limits: Limits) -> Census:
    return Census(
        connections=Caps(
            limits.connections_per_tenant_max, limits.connections_per_principal_max, limits.connections_per_address_max
        ),
        subscriptions=Caps(
            limits.subscriptions_per_tenant_max,
            limits.subscriptions_per_principal_max,
            limits.subscriptions_per_address_max,
        ),
    )
