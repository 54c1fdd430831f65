"""What the gateway does at each level of load: which calls it takes, and how the level comes about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.client import Store
from backend_store.model import Overloaded
from gateway.admission.loop_lag import JUDGED_TICKS, LoopLag
from gateway.admission.overload import BROWSING, EVENTS, SETTLING, Overload, refusal_of_call
from gateway.admission.request_bodies import RequestBodies
from gateway.api.table import OPERATIONS
from gateway.app import Application, create_app
from gateway.config.settings import OverloadSettings, Settings
from gateway.limits import SETTLING_BODY_BYTES_SURE
from push.intake import Intake
from tests.unit.gateway.conftest import Clock
from throttling.admission import Level

pytestmark = pytest.mark.anyio

MEMORY = 1_000_000_000


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    made = create_app(store, Settings(), clock_ms=clock)
    yield made
    await made.gateway.hub.close()


def loaded(level: Level) -> Intake:
    intake = Intake()
    intake.set_level(level, "82% of the memory limit is used")
    return intake


class Measured:
    """An application whose memory and lag a test sets."""

    def __init__(self, app: Application, store: Store, clock: Clock) -> None:
        self.used, self.clock, self.lag = 0, clock, LoopLag()
        self.intake = app.gateway.hub.intake
        self.overload = Overload(
            store,
            app.gateway.hub,
            self.lag,
            OverloadSettings(),
            memory_bytes_max=MEMORY,
            used=lambda: self.used,
        )

    def after(self, seconds: float) -> Level:
        self.clock.ms += round(seconds * 1000)
        self.overload.measure()
        return self.intake.level


@pytest.fixture
def measured(app: Application, store: Store, clock: Clock) -> Measured:
    return Measured(app, store, clock)


# ------------------------------------------------------------------------------------------------------- calls


def test_what_is_shed_exists() -> None:
    known = {(operation.method, operation.path) for operation in OPERATIONS}
    assert known >= SETTLING | BROWSING | {("GET", EVENTS)}


def test_what_ends_messages_is_taken_at_every_level() -> None:
    for level in Level:
        for method, path in SETTLING:
            assert refusal_of_call(loaded(level), method, path) is None
        assert refusal_of_call(loaded(level), "DELETE", "/v1/queues/{queue}") is None


def test_lists_and_peeks_are_refused_before_publishes_are() -> None:
    refused = {
        level: {
            (operation.method, operation.path)
            for operation in OPERATIONS
            if refusal_of_call(loaded(level), operation.method, operation.path) is not None
        }
        for level in Level
    }
    assert refused[Level.NORMAL] == refused[Level.NO_NEW_SOCKETS] == set()
    assert refused[Level.NO_REPLAYS] == BROWSING
    assert ("POST", "/v1/queues/{queue}/messages") in refused[Level.NO_PUBLISHES]
    assert refused[Level.NO_PUBLISHES] > BROWSING


async def get(app: Application, path: str) -> tuple[int, dict[str, Any]]:
    answer: dict[str, Any] = {"body": b""}

    async def send(message: Any) -> None:
        answer["body"] += message.get("body", b"")
        answer.setdefault("status", message.get("status"))

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"verbose", "headers": []}
    await app(scope, receive, send)
    return answer["status"], msgspec.json.decode(answer["body"])


async def test_only_without_publishes_a_process_is_not_ready_and_a_balancer_is_never_told(app: Application) -> None:
    ready = {}
    for level in Level:
        app.gateway.hub.intake.set_level(level, "82% of the memory limit is used")
        ready[level] = (await get(app, "/readyz"))[0]
        assert (await get(app, "/lbz"))[0] == (await get(app, "/livez"))[0] == 200
    assert list(ready.values()) == [200, 200, 200, 503]
    _, problem = await get(app, "/readyz")
    assert problem["code"] == "overloaded" and "82% of the memory" in problem["detail"]


# ------------------------------------------------------------------------------------------------------- level


async def test_memory_raises_the_level_and_calm_lowers_it(measured: Measured) -> None:
    measured.used = 850_000_000
    assert measured.after(0.5) == Level.NO_PUBLISHES
    measured.used = 100_000_000
    assert [measured.after(0.5) for _ in range(16)][-1] == Level.NORMAL
    assert measured.overload.changes[Level.NO_PUBLISHES] == 1


async def test_a_late_loop_closes_the_door_for_new_sockets(measured: Measured) -> None:
    for _ in range(JUDGED_TICKS):
        measured.lag.add(0.15)
    assert measured.after(0.5) == Level.NO_NEW_SOCKETS
    refusal = measured.intake.refusal_of_socket(0, 10)
    assert refusal is not None and "150 ms late" in refusal.detail


async def test_a_disk_that_does_not_keep_up_refuses_publishes_and_lets_them_in_again(measured: Measured) -> None:
    for _ in range(6):
        measured.overload.waited(80)
        measured.clock.ms += 100
    assert measured.intake.publishes
    measured.overload.waited(0)
    assert not measured.intake.publishes


def test_a_disk_that_fills_up_is_logged_with_where_publishes_stop(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SimpleNamespace(space=SimpleNamespace(used_fraction=0.93), publish_stop_fraction=0.95)
    monkeypatch.setattr(measured.overload, "_node", SimpleNamespace(space=space))
    with capture_logs() as logs:
        measured.overload._look_at_disk()
        measured.overload._look_at_disk()
    assert [(one["event"], one["publishes_stop_at"]) for one in logs] == [("the disk is filling up", 0.95)]


# ---------------------------------------------------------------------------------------------------- requests


def test_bodies_share_a_room_and_give_it_back() -> None:
    intake = Intake(unconfirmed_bytes_max=1000)
    first, second = RequestBodies(intake, "a", is_settling=False), RequestBodies(intake, "a", is_settling=False)
    first.add(500)
    with pytest.raises(Overloaded, match="no room"):
        second.add(100)
    second.release()
    first.release()
    first.release()
    assert intake.room.used == 0


def test_an_ack_is_read_however_full_the_room_is_but_not_without_end() -> None:
    intake = Intake(unconfirmed_bytes_max=1000)
    intake.take("a", 500)
    ack = RequestBodies(intake, "a", is_settling=True)
    ack.add(SETTLING_BODY_BYTES_SURE)
    with pytest.raises(Overloaded):
        ack.add(1)
    ack.release()
    assert intake.room.used == 500
