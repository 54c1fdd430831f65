"""A catalogue in front of a service: one question for all who miss one thing, and few questions at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import accumulate

import pytest

from backend_store.client.metadata import Change, Moment, Read
from backend_store.metadata.local import LocalMetadata
from backend_store.model import PushqError, QueueConfig, QueueDefinition, Unavailable
from gateway.admission.dependency_guard import Guard, GuardSettings
from gateway.limits import CATALOGUE_ASKS_MAX, CATALOGUE_FLIGHTS_MAX
from gateway.metadata.catalog import Catalog, Follower
from push.delivery.lookup_retry import LookingUp, answered, asks, found, handled
from tests.support.metadata import local_service
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

QUEUES = 1_000


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
async def clock() -> Clock:
    return Clock()


Known = Catalog[str, str]
Fetch = Callable[[str], Awaitable[Read[str | None]]]


def known(fetch: Fetch, clock: Clock) -> Known:
    guard = Guard("metadata", GuardSettings(failures=(OSError, Unavailable)))
    made: Known = Catalog("thing", fetch, guard, entries_max=100, stale_ms_max=60_000, clock_ms=clock)
    made.cache.heard(clock())
    return made


class Service:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked: list[str] = []
        self.revision = 0
        self.fails = False

    async def fetch(self, name: str) -> Read[str | None]:
        self.asked.append(name)
        at = Moment("era", self.revision)
        await self.may_answer.wait()
        if self.fails:
            raise Unavailable("no")
        return Read(None if name.startswith("absent") else f"value of {name}", at)


@pytest.fixture
async def service() -> Service:
    return Service()


async def test_all_who_miss_one_thing_share_one_question(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    assert await asyncio.gather(*(found(lambda: catalogue.find("q")) for _ in range(100))) == ["value of q"] * 100
    assert (service.asked, catalogue.joined) == (["q"], 99)
    assert catalogue.find("q") == "value of q" and len(service.asked) == 1


async def test_what_is_absent_is_known_to_be_absent(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    assert await found(lambda: catalogue.find("absent")) is None
    assert catalogue.find("absent") is None and service.asked == ["absent"]


async def test_who_waits_goes_on_in_the_order_of_asking(service: Service, clock: Clock) -> None:
    catalogue, went = known(service.fetch, clock), list[int]()
    for number in range(5):
        catalogue.ask("q").then(lambda error, number=number: went.append(number))  # type: ignore[misc]
    await catalogue.ask("q").landed()
    assert went == [0, 1, 2, 3, 4]


async def test_one_who_fails_does_not_keep_the_others_waiting(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)

    def broken(error: PushqError | None) -> None:
        raise RuntimeError("a mistake")

    catalogue.ask("q").then(broken)
    assert await asyncio.wait_for(found(lambda: catalogue.find("q")), 5) == "value of q"


async def test_a_failure_is_told_to_all_and_the_next_one_asks_anew(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    service.fails = True
    outcomes = await asyncio.gather(*(found(lambda: catalogue.find("q")) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes) and catalogue.failures == 1
    service.fails = False
    assert await found(lambda: catalogue.find("q")) == "value of q"


async def test_an_answer_that_a_change_overtook_is_asked_for_again(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    service.may_answer.clear()
    looking = asyncio.create_task(found(lambda: catalogue.find("q")))
    while not service.asked:  # noqa: ASYNC110 - the flight makes it true
        await asyncio.sleep(0)
    service.revision = 1
    catalogue.cache.changed("q", Moment("era", 1), clock())
    service.may_answer.set()
    assert await looking == "value of q" and service.asked == ["q", "q"]


async def test_what_changes_all_the_time_is_refused_after_a_few_questions(clock: Clock) -> None:
    asked = 0

    async def fetch(name: str) -> Read[str | None]:
        nonlocal asked
        asked += 1
        catalogue.cache.changed(name, Moment("era", asked), clock())
        return Read("v", Moment("era", 0))

    catalogue = known(fetch, clock)
    with pytest.raises(Unavailable, match="changes too quickly"):
        await found(lambda: catalogue.find("q"))
    assert asked == CATALOGUE_ASKS_MAX


async def test_one_look_up_too_many_is_refused(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    service.may_answer.clear()
    for number in range(CATALOGUE_FLIGHTS_MAX):
        catalogue.ask(f"q{number}")
    with pytest.raises(Unavailable, match="lookups are already in progress"):
        await found(lambda: catalogue.find("one more"))
    await catalogue.close()


async def test_a_mistake_in_a_look_up_is_told_as_one(clock: Clock) -> None:
    async def broken(name: str) -> Read[str | None]:
        raise RuntimeError("a mistake")

    catalogue = known(broken, clock)
    with pytest.raises(PushqError, match="internal error"):
        await found(lambda: catalogue.find("q"))


async def test_a_handler_begins_anew_until_all_it_needs_is_known(service: Service, clock: Clock) -> None:
    catalogue, begun = known(service.fetch, clock), 0

    async def handler() -> list[str | None]:
        nonlocal begun
        begun += 1
        return [catalogue.find(name) for name in ("a", "b", "c")]

    assert await handled(handler) == ["value of a", "value of b", "value of c"]
    assert begun == 4


async def test_a_look_up_that_never_ends_well_ends() -> None:
    class Landed:
        def then(self, call: Callable[[PushqError | None], None]) -> None:
            call(None)

        def wanted(self, until: float) -> None: ...
        async def landed(self) -> None:
            """At once."""

    def always() -> None:
        raise LookingUp("it", Landed())

    with pytest.raises(Unavailable, match="lookups"):
        await found(always)


# ------------------------------------------------------------------------------------------------- deadlines


async def looked_up(catalogue: Known, name: str, wait_s: float) -> str | None:
    """As a request does whose caller waits for so long."""
    token = asks(wait_s)
    assert token is not None
    try:
        return await found(lambda: catalogue.find(name))
    finally:
        answered(token)


async def test_each_of_those_who_share_a_question_waits_as_long_as_it_said(service: Service, clock: Clock) -> None:
    catalogue = known(service.fetch, clock)
    service.may_answer.clear()
    patient = asyncio.create_task(looked_up(catalogue, "q", 60))
    with pytest.raises(Unavailable, match="'q' could not be looked up in time"):
        await looked_up(catalogue, "q", 0.01)
    service.may_answer.set()
    assert await patient == "value of q" and service.asked == ["q"]


async def test_what_nobody_waits_for_any_more_is_not_begun(service: Service, clock: Clock) -> None:
    """All places at the service are taken by calls that stand still; when one is free, those who waited have gone."""
    guard = Guard("metadata", GuardSettings(at_once_max=1, failures=(OSError, Unavailable)))
    catalogue: Known = Catalog("thing", service.fetch, guard, entries_max=9, stale_ms_max=9_000, clock_ms=clock)
    catalogue.cache.heard(clock())
    service.may_answer.clear()
    first = asyncio.create_task(looked_up(catalogue, "first", 60))
    await eventually(lambda: service.asked == ["first"])
    for name in ("second", "third"):
        with pytest.raises(Unavailable):
            await looked_up(catalogue, name, 0.01)
    staying = asyncio.create_task(looked_up(catalogue, "third", 60))
    await asyncio.sleep(0)
    service.may_answer.set()
    assert (await first, await staying) == ("value of first", "value of third")
    assert service.asked == ["first", "third"] and guard.calls["abandoned"] == 1
    assert guard.state == "closed" and not guard.calls["timed_out"], "a caller's haste says nothing of the service"


async def test_a_question_that_failed_is_not_repeated_for_nobody(clock: Clock) -> None:
    asked = 0

    async def fails(name: str) -> Read[str | None]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.03)
        raise ConnectionResetError("lost")

    catalogue = known(fails, clock)
    with pytest.raises(Unavailable):
        await looked_up(catalogue, "q", 0.01)
    await eventually(lambda: not catalogue._flights)
    assert asked == 1


async def test_what_is_asked_for_ahead_has_no_deadline(service: Service, clock: Clock) -> None:
    """Also where a request begins it, or joins it and leaves."""
    catalogue = known(service.fetch, clock)
    service.may_answer.clear()
    token = asks(0.01)
    assert token is not None
    flight = catalogue.ask("q")
    with pytest.raises(Unavailable):
        await found(lambda: catalogue.find("q"))
    answered(token)
    assert flight.is_wanted
    service.may_answer.set()
    await flight.landed()
    assert catalogue.find("q") == "value of q"


# ------------------------------------------------------------------------------------------- before a real service


@pytest.fixture
async def filled() -> LocalMetadata:
    service = local_service()
    for number in range(QUEUES):
        await service.create_queue("default", f"q{number}", QueueConfig())
    return service


@pytest.fixture
async def followed(filled: LocalMetadata, clock: Clock) -> AsyncIterator[Catalog[str, QueueDefinition]]:
    catalogue: Catalog[str, QueueDefinition] = Catalog(
        "queue",
        lambda name: filled.get_queue("default", name),
        Guard("metadata"),
        entries_max=10_000,
        stale_ms_max=3_600_000,
        clock_ms=clock,
    )
    caches: list[object] = [catalogue.cache]
    follower = Follower(
        filled,
        caches,  # type: ignore[arg-type]
        lambda change, at: catalogue.cache.changed(change.name, at, clock()),
        clock_ms=clock,
    )
    task = asyncio.create_task(follower.run())
    yield catalogue
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await catalogue.close()


async def test_of_a_thousand_queues_in_use_99_look_ups_in_100_need_not_ask(
    filled: LocalMetadata, followed: Catalog[str, QueueDefinition], clock: Clock
) -> None:
    names = [f"q{number}" for number in range(QUEUES)]
    zipf = list(accumulate(1 / (rank + 1) for rank in range(QUEUES)))
    chance = random.Random(7)
    cache = followed.cache
    for turn in range(20):
        if turn == 10:
            warm = cache.hits, cache.misses
        for name in chance.choices(names, cum_weights=zipf, k=2_000):
            await found(lambda name=name: followed.find(name))  # type: ignore[misc]
        for name in chance.choices(names, k=2):  # somebody changes one now and then
            found_now = (await filled.get_queue("default", name)).value
            assert found_now is not None
            config = QueueConfig(visibility_timeout_ms=turn + 1)
            await filled.update_queue("default", name, config, found_now.version)
        clock.now_ms += 1_000
        await asyncio.sleep(0)
    hits, misses = cache.hits - warm[0], cache.misses - warm[1]
    assert hits / (hits + misses) >= 0.99, f"{hits} hits, {misses} misses"


async def test_a_change_is_seen_as_soon_as_the_news_are(
    filled: LocalMetadata, followed: Catalog[str, QueueDefinition]
) -> None:
    before = await found(lambda: followed.find("q1"))
    assert before is not None
    await asyncio.sleep(0.01)  # the watch is there
    changed = await filled.update_queue("default", "q1", QueueConfig(kind="stream"), before.version)
    async with asyncio.timeout(5):
        while await found(lambda: followed.find("q1")) != changed:  # noqa: ASYNC110 - the watch makes it true
            await asyncio.sleep(0)
    await filled.delete_queue("default", "q1")
    async with asyncio.timeout(5):
        while await found(lambda: followed.find("q1")) is not None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


async def test_a_fault_with_one_change_ends_no_watch_and_what_came_with_it_is_looked_up(
    filled: LocalMetadata, clock: Clock
) -> None:
    """The gateway heard of no change any more, and refused all keys when it had not heard of them for long enough."""
    told: list[str] = []

    def changed(change: Change, at: Moment) -> None:
        told.append(change.name)
        if len(told) == 1:
            raise AssertionError("a fault of ours")

    lost_sight: list[bool] = []
    follower = Follower(filled, [], changed, clock_ms=clock, lost_sight=lambda: lost_sight.append(True))
    task = asyncio.create_task(follower.run())
    await eventually(lambda: bool(lost_sight))
    await filled.delete_queue("default", "q1")
    await eventually(lambda: len(lost_sight) == 2)
    await filled.delete_queue("default", "q2")
    await eventually(lambda: told[-1] == "q2")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
