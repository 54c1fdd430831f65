"""Alerts of two gateways of one store: one asks and tells, the other shows it, and goes on when the first is gone."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.metadata.documents import Documents
from backend_store.metadata.duties import Duties
from backend_store.model import Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from backend_store.remote.definitions.documents import RemoteDocuments
from backend_store.service.operations import TakeDuty
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from gateway.alerts import teller
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import Rule
from gateway.alerts.limits import DUTY_HOLD_MS_MAX, DUTY_HOLD_MS_MIN, DUTY_LOOKS_BEFORE, DUTY_MARGIN_MS
from gateway.alerts.stored import FIRING, Receiver, telling_id
from gateway.alerts.teller import Heard
from gateway.series.book import Book

pytestmark = pytest.mark.anyio

RULE = Rule(
    "rule_1", "shop", "few", "key_days", "*", 5, 6, 5_000, 5_000, 60_000, "warning", ("receiver_1",), True, "", None,
    None, 0, "me", 0,
)  # fmt: skip
RECEIVER = Receiver("receiver_1", "shop", "ops", "webhook", "https://hooks.example/", "m", b"sealed", 0)
LOOK_MS = 2_500
SUBJECT = "key:one"


class Backend:
    """What has the rows, and says whose the duty is."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.engine = MemoryEngine()
        self.documents = Documents(self.engine, self._write)
        self.duties = Duties(self.documents, lambda: self.now_ms)
        self.gateways: list[RemoteDocuments] = []
        self.is_away = False
        self.cut_off: set[str] = set()
        """Gateways that do not reach it."""

    async def _write(self, batch: Batch) -> None:
        self.engine.commit(batch, lambda: None)

    async def ask_of(self, gateway: str, operation: Any) -> msgspec.Raw:
        if gateway in self.cut_off:
            raise Unavailable("it does not answer")
        return await self.ask(operation)

    async def ask(self, operation: Any) -> msgspec.Raw:
        if self.is_away:
            raise Unavailable("nobody leads")
        before, answer = dict(self.documents.rows()), None
        if isinstance(operation, TakeDuty):
            answer = await self.duties.take(operation.name, operation.asker, operation.hold_ms)
        else:
            if operation.duty is not None:
                self.duties.check(operation.duty)
            await self.documents.write(operation.documents)
        rows = self.documents.rows()
        changed = [row for place, row in rows.items() if before.get(place) is not row]
        for gateway in self.gateways:
            gateway.take(changed, [place for place in before if place not in rows], is_first=False)
        return msgspec.Raw(msgspec.msgpack.encode(answer))


class Sources:
    """What there is to see, the same for both."""

    def __init__(self, world: World) -> None:
        self._world = world

    def values(self, *_: Any) -> list[tuple[str, float | None]]:
        return [(SUBJECT, self._world.days)]

    def with_unseen(self, rule: Rule, open_: Any, values: Any) -> Any:
        return values

    def forget(self, rule_id: str) -> None:
        pass

    async def report(self, *_: Any) -> None:
        pass

    async def forget_gone(self) -> None:
        pass


class Gateway:
    def __init__(self, world: World, name: str) -> None:
        documents = RemoteDocuments(partial(world.backend.ask_of, name), holder=name, are_shared=True)
        documents.take(list(world.backend.documents.rows().values()), [], is_first=True)
        world.backend.gateways.append(documents)
        sources: Any = Sources(world)
        clock_ms = lambda: world.backend.now_ms  # noqa: E731
        self.alerts = Alerts(documents, Book(), sources, clock_ms=clock_ms, steady_ms=clock_ms)  # type: ignore[arg-type]
        self.seen: list[str] = []
        self.told: list[str] = []
        self.resumed: list[str] = []
        self.cuts = 0
        self.alerts.on_seen.append(lambda rule, alert, silence: self.seen.append(alert.state))
        self.alerts.on_told.append(lambda rule, alert, silence: self.told.append(alert.state))
        self.alerts.on_duty.append(lambda: self.resumed.extend(one.id for one in self.alerts.record.tellings()))
        self.alerts.on_lost.append(self._cut)

    def _cut(self) -> None:
        self.cuts += 1

    @property
    def open(self) -> Alert | None:
        return self.alerts.open.get(RULE.id, {}).get(SUBJECT)


class World:
    def __init__(self) -> None:
        self.backend = Backend()
        self.days = 9.0
        self.a, self.b = Gateway(self, "a"), Gateway(self, "b")
        self.present = [self.a, self.b]

    async def looks(self, times: int) -> None:
        for _ in range(times):
            self.backend.now_ms += LOOK_MS
            for gateway in self.present:
                await gateway.alerts.evaluate(self.backend.now_ms)


def believes_still(gateway: Gateway) -> None:
    """Its clock goes wrong, so that it takes the duty for its own."""
    one = gateway.alerts.teller

    async def nothing_new() -> Heard:
        return Heard.NOTHING_NEW

    one.ask = nothing_new  # type: ignore[method-assign]
    one._until = float("inf")


class Steady:
    """A clock of gateways that goes as the backend's does, also while their machine sleeps."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def clock_gettime(self, clock: int) -> float:
        assert clock == self.CLOCK_BOOTTIME, "others stand still while a machine sleeps"
        return self._backend.now_ms / 1000


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(teller, "time", Steady(world.backend))
    await world.a.alerts.put_receiver(RECEIVER, None)
    await world.a.alerts.put_rule(RULE, None)
    await world.looks(DUTY_LOOKS_BEFORE)
    assert not world.a.alerts.teller.is_ours, "it does not know yet what there is"
    await world.looks(1)
    assert world.a.alerts.teller.is_ours and not world.b.alerts.teller.is_ours
    return world


async def test_one_gateway_tells_and_the_other_shows_the_same(world: World) -> None:
    world.days = 1
    await world.looks(2)
    assert world.b.open == world.a.open and world.b.open is not None and world.b.open.state == "pending"
    world.days = 2
    await world.looks(3)
    assert (world.a.told, world.b.told) == (["pending", "firing"], [])
    assert world.b.seen == ["pending", "firing"] and world.b.open == world.a.open, "with the value of now"
    world.days = 9
    await world.looks(4)
    assert world.a.told[2:] == world.b.seen[2:] == ["resolved"] and world.b.told == []
    assert [*world.a.alerts.of_tenant("shop")] == [*world.b.alerts.of_tenant("shop")] != []
    assert world.a.alerts.history == world.b.alerts.history


async def test_another_one_goes_on_where_the_first_stopped(world: World) -> None:
    """It waits no longer than the rule says, tells nothing twice, and goes on with webhooks that were on their way."""
    world.days = 1
    await world.looks(3)
    assert world.a.told == ["pending", "firing"]
    fired = world.a.open
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.alerts.teller.is_ours and world.b.told == [] and world.b.open == fired and fired is not None
    assert world.b.resumed == [telling_id(fired, RECEIVER.id)]
    world.b.alerts.record.told(world.b.resumed[0])
    world.days = 9
    await world.looks(4)
    assert world.b.told == ["resolved"]
    assert [one.state for one in world.b.alerts.history["shop"]] == ["firing", "resolved"]
    (left,) = world.b.alerts.record.tellings()
    assert left.alert.state == "resolved"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_nothing_is_left_of_a_rule_that_was_removed_just_before_its_teller_stopped(
    world: World, *, is_deleted: bool
) -> None:
    """Who removed it had not heard yet what the other one had found: an alert of a rule that is off fired for ever."""
    world.days, world.present = 1, [world.a]
    await world.looks(3)
    assert world.a.told == ["pending", "firing"] and world.b.open is None
    if is_deleted:
        await world.b.alerts.delete_rule(RULE)
    else:
        await world.b.alerts.put_rule(msgspec.structs.replace(RULE, enabled=False), RULE)
    assert len(world.backend.documents.all(FIRING)) == 1
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.alerts.teller.is_ours
    assert world.b.open is None and not world.backend.documents.all(FIRING)


async def test_an_alert_that_waits_goes_on_waiting_at_another_gateway(world: World) -> None:
    world.days = 1
    await world.looks(1)
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS)
    assert world.b.alerts.teller.is_ours and world.b.told == ["firing"], "it was past the limit for long enough"


async def test_who_does_not_reach_the_backends_has_stopped_before_another_one_tells(world: World) -> None:
    world.backend.cut_off = {"a"}
    for _ in range(2 * DUTY_HOLD_MS_MIN // LOOK_MS):
        await world.looks(1)
        assert not (world.a.alerts.teller.is_ours and world.b.alerts.teller.is_ours)
    assert world.b.alerts.teller.is_ours
    world.days = 1
    await world.looks(4)
    assert world.a.told == [] and world.b.told == ["pending", "firing"]
    world.backend.cut_off = set()
    await world.looks(1)
    assert world.a.open == world.b.open and world.a.seen == ["firing"] and world.a.told == []


async def test_the_holder_counts_from_when_it_asked(world: World) -> None:
    """The backend counts from when it heard it, and its answer takes long."""
    one, asked_ms = world.a.alerts.teller, world.backend.now_ms

    async def slow(operation: Any) -> msgspec.Raw:
        answer = await world.backend.ask(operation)
        world.backend.now_ms += 4_000
        return answer

    one._documents._ask = slow  # type: ignore[attr-defined]
    await one.ask()
    world.backend.now_ms = asked_ms + DUTY_HOLD_MS_MIN - DUTY_MARGIN_MS - 1
    assert one.is_ours
    world.backend.now_ms += 1
    assert not one.is_ours
    assert (await world.backend.duties.take("alerts", "b", DUTY_HOLD_MS_MIN)).holder == "a"


async def test_an_ask_that_may_have_been_heard_counts_without_its_answer(world: World) -> None:
    """It asked for a long time, as its looks were long; then for a short one, and the answer was lost."""
    one = world.a.alerts.teller
    world.backend.now_ms += DUTY_HOLD_MS_MIN
    await one.ask()

    async def unanswered(operation: Any) -> msgspec.Raw:
        await world.backend.ask(operation)
        raise OutcomeUnknown("the backend was lost")

    one._documents._ask = unanswered  # type: ignore[attr-defined]
    world.backend.now_ms += LOOK_MS
    await one.ask()
    world.backend.now_ms += DUTY_HOLD_MS_MIN
    await world.b.alerts.teller.ask()
    assert world.b.alerts.teller.is_ours and not one.is_ours


async def test_two_that_find_the_same_give_it_the_same_id(world: World) -> None:
    """One tells of it in the time that it has left and cannot write it down; then the other one finds it, too."""
    world.days = 1
    await world.looks(3)
    world.days = 9
    await world.looks(4)
    assert world.a.told == ["pending", "firing", "resolved"]
    ended = world.a.alerts.history["shop"][-1].alert
    ids: dict[str, list[str]] = {"a": [], "b": []}
    for name, gateway in (("a", world.a), ("b", world.b)):
        gateway.alerts.on_told.append(lambda rule, alert, silence, name=name: ids[name].append(alert.id))
    world.backend.cut_off = {"a"}
    world.days = 1
    await world.looks(8)
    assert world.b.told == ["pending", "firing"] and ids["a"] and {*ids["a"]} == {*ids["b"]} != {ended}


async def test_who_had_stopped_and_has_it_still_goes_on_with_what_it_knows(world: World) -> None:
    """Nobody had it meanwhile: what could not be written down is so, and webhooks that were left are sent."""
    world.present = [world.a]
    world.backend.is_away = True
    world.days = 1
    await world.looks(8)
    assert world.a.told == ["pending", "firing"] and world.a.alerts.teller.has_lapsed
    fired = world.a.open
    world.backend.is_away = False
    await world.looks(1)
    assert fired is not None and world.a.resumed == [telling_id(fired, RECEIVER.id)]
    assert world.a.told == ["pending", "firing"] and world.a.open == fired and world.a.cuts == 0
    assert [line.state for line in world.a.alerts.history["shop"]] == ["firing"]
    assert len(world.backend.documents.all("alert-history")) == 1


async def test_who_stopped_while_it_asked_goes_on_with_webhooks_that_it_left_meanwhile(world: World) -> None:
    """Its time was over before the answer came that gave it more; a try in between was left to whoever tells next."""
    world.present, one = [world.a], world.a.alerts.teller
    world.days = 1
    await world.looks(3)
    assert world.a.told == ["pending", "firing"]
    fired = world.a.open
    world.backend.is_away = True
    await world.looks(2)
    world.backend.is_away = False
    stopped: list[bool] = []

    async def slow(operation: Any) -> msgspec.Raw:
        answer = await world.backend.ask(operation)
        if isinstance(operation, TakeDuty):
            world.backend.now_ms += 4_000
            stopped.append(not one.is_ours)
        return answer

    one._documents._ask = slow  # type: ignore[attr-defined]
    await world.looks(1)
    assert stopped == [True] and one.is_ours
    assert fired is not None and world.a.resumed == [telling_id(fired, RECEIVER.id)]


async def test_who_hears_that_another_one_has_it_shows_what_that_one_wrote_and_nothing_else(world: World) -> None:
    """It had told of an alert that it could not write down any more: a line with the number of the other one's."""
    world.backend.cut_off = {"a"}
    world.days = 1
    await world.looks(3)
    assert world.a.told == ["pending", "firing"]
    world.days = 9
    await world.looks(3)
    world.days = 1
    await world.looks(4)
    assert world.b.told[-2:] == ["pending", "firing"]
    world.backend.cut_off = set()
    await world.looks(1)
    assert world.a.alerts.history == world.b.alerts.history and world.a.open == world.b.open


async def test_who_lost_the_duty_without_knowing_tells_nothing(world: World) -> None:
    """It was held up for so long that another one took over; what it finds then is refused."""
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.alerts.teller.is_ours
    world.days = 1
    await world.looks(4)
    believes_still(world.a)
    await world.a.alerts.evaluate(world.backend.now_ms)
    assert world.a.told == [] and not world.a.alerts.teller.is_ours and world.a.cuts == 1
    assert world.a.open == world.b.open and world.b.told == ["pending", "firing"]


async def test_who_wrote_down_in_vain_shows_what_the_other_one_told_meanwhile(world: World) -> None:
    """Its own line of the history had the number of the other one's."""
    world.days = 1
    await world.looks(1)
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.told == ["firing"]
    believes_still(world.a)
    await world.a.alerts.evaluate(world.backend.now_ms)
    assert world.a.told == ["pending"] and world.a.seen == ["pending", "firing"]


async def test_who_lost_the_duty_leaves_webhooks_that_are_on_their_way_to_the_next_one(world: World) -> None:
    """It stood still, and would tell of the begin after the other one told of the end."""
    world.days = 1
    await world.looks(3)
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.resumed and not world.a.cuts
    world.present = [world.a, world.b]
    await world.looks(2)
    assert (world.a.cuts, world.b.cuts) == (1, 0)


async def test_who_has_it_again_after_another_one_goes_on_with_that_ones_webhooks_and_not_its_own(world: World) -> None:
    """It stood still, and the other one had come and gone by the time that it asked again."""
    world.days = 1
    await world.looks(3)
    world.present = [world.b]
    await world.looks(DUTY_HOLD_MS_MIN // LOOK_MS + 1)
    assert world.b.alerts.teller.is_ours
    await world.b.alerts.leave()
    steps: list[str] = []
    world.a.alerts.on_lost.append(lambda: steps.append("cut"))
    world.a.alerts.on_duty.append(lambda: steps.append("go on"))
    world.present = [world.a]
    await world.looks(1)
    assert world.a.alerts.teller.is_ours and steps == ["cut", "go on"]


async def test_a_look_with_changes_reads_what_has_changed_and_not_all_of_the_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.days = 1
    await world.looks(3)
    read: list[str] = []
    all_of_kind = RemoteDocuments.all
    monkeypatch.setattr(RemoteDocuments, "all", lambda self, kind: (read.append(kind), all_of_kind(self, kind))[1])
    world.days = 9
    await world.looks(4)
    assert [line.state for line in world.b.alerts.history["shop"]] == ["firing", "resolved"]
    assert world.b.seen == ["pending", "firing", "resolved"] and "alert-history" not in read
    await world.b.alerts.forget_tenant("shop")
    await world.looks(1)
    assert world.a.alerts.history == world.b.alerts.history == {} and "alert-history" not in read


async def test_webhooks_go_on_in_the_order_in_which_they_were_found(world: World) -> None:
    for at in range(8):
        alert = Alert(f"alert{at}", RULE.id, SUBJECT, "firing", 1, at)
        world.a.alerts.record.tell(RULE, alert, RECEIVER.id, at)
    await world.a.alerts.record.write(world.a.alerts.teller.duty)
    assert [one.alert.since_ms for one in world.b.alerts.record.tellings()] == list(range(8))


async def test_at_older_backends_it_is_said_once_that_nobody_tells(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: Any) -> Any:
        raise InvalidRequest("cannot parse the request: Invalid value 'TakeDuty'")

    fresh = Gateway(world, "c")
    monkeypatch.setattr(fresh.alerts.teller._documents, "_ask", refused)
    world.present = [fresh]
    with capture_logs() as logs:
        await world.looks(DUTY_LOOKS_BEFORE + 3)
    assert [one["log_level"] for one in logs if "no gateway sends alerts: upgrade the backends" in one["event"]] == [
        "warning"
    ]


async def test_who_stood_still_for_an_hour_does_not_get_the_duty_for_hours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Clock:
        CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
        now = 100.0

        def clock_gettime(self, _: int) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(teller, "time", clock)
    one = teller.Teller(world.a.alerts._documents)
    for pause in (2.5, 20, 3600, 2.5):
        clock.now += pause
        asked.append(one._hold_ms())
    assert asked == [DUTY_HOLD_MS_MIN, 60_000, DUTY_HOLD_MS_MAX, DUTY_HOLD_MS_MIN]


async def test_while_the_backends_are_away_alerts_are_told_and_written_down_later(world: World) -> None:
    world.backend.is_away = True
    world.days = 1
    await world.looks(4)
    assert world.a.told == ["pending", "firing"] and world.b.told == []
    world.backend.is_away = False
    await world.looks(1)
    assert world.a.told == ["pending", "firing"] and world.b.seen[-1:] == ["firing"] and world.b.open == world.a.open


async def test_who_ends_in_order_is_not_waited_for(world: World) -> None:
    await world.a.alerts.leave()
    world.present = [world.b]
    await world.looks(1)
    assert world.b.alerts.teller.is_ours


async def test_a_rule_that_was_removed_at_another_gateway_leaves_no_alert(world: World) -> None:
    world.days = 1
    await world.looks(4)
    await world.b.alerts.delete_rule(RULE)
    await world.looks(1)
    assert world.a.open is None and world.b.open is None
    assert not world.backend.documents.all("alert") and world.a.told == ["pending", "firing"]


async def test_a_rule_that_was_changed_at_another_gateway_is_not_overwritten_before_the_next_look(world: World) -> None:
    changed = msgspec.structs.replace(RULE, limit=20)
    await world.b.alerts.put_rule(changed, RULE)
    with pytest.raises(Conflict):
        await world.a.alerts.put_rule(msgspec.structs.replace(RULE, limit=30), RULE)
    with pytest.raises(Conflict):
        await world.a.alerts.delete_rule(RULE, is_as_known=True)
    assert world.a.alerts.rules == {RULE.id: changed}
