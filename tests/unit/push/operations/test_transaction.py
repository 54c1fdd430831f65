"""An ack that publishes goes through the door of every publish."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.model import Overloaded, PushqError, QueueConfig, StorageFull
from push.intake import Intake
from push.operations.transaction import outputs
from push.ports import Prepared
from push.protocol import Ack, AckPublish, PublishMessage
from push.session.requests import ack
from throttling.admission import Level

PUBLISHES = [AckPublish("target", [PublishMessage(body=msgspec.Raw(b"1"))])]


class Desk:
    """Knows one queue and prepares nothing for it; its tenant may be full."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.prepared = 0

    def publish_with_ack(self, principal: Any, name: str) -> Any:
        if self.full:
            raise StorageFull("it holds too much")
        return SimpleNamespace(name=name, config=QueueConfig())

    def prepare(self, *args: Any) -> Prepared:
        self.prepared += 1
        return Prepared([], None)


def asked(hub: Any) -> list[Any]:
    source: Any = SimpleNamespace(name="source", is_colocated_with=lambda queue: True)
    principal: Any = SimpleNamespace(id="k", tenant="t")
    return list(outputs(hub, principal, source, ["receipt"], PUBLISHES, "json"))


def hub_of(desk: Desk, intake: Intake | None = None, *, draining: bool = False) -> Any:
    return SimpleNamespace(desk=desk, intake=intake or Intake(), draining=draining)


def test_with_room_and_without_load_it_is_prepared() -> None:
    desk = Desk()
    (made,) = asked(hub_of(desk))
    assert made.queue.name == "target" and desk.prepared == 1


def test_a_tenant_that_holds_its_quota_cannot_publish_with_an_ack() -> None:
    desk = Desk(full=True)
    with pytest.raises(StorageFull):
        asked(hub_of(desk))
    assert not desk.prepared


def test_where_load_keeps_publishes_out_it_is_refused_with_them() -> None:
    desk, intake = Desk(), Intake()
    intake.set_level(Level.NO_PUBLISHES, "82% of the memory limit is used")
    intake.look()
    with pytest.raises(Overloaded, match="82%"):
        asked(hub_of(desk, intake))
    assert not desk.prepared and intake.refused == {("publish", "load"): 1}


def test_a_server_that_drains_takes_none() -> None:
    with pytest.raises(PushqError, match="shutting down"):
        asked(hub_of(Desk(), draining=True))


class Source:
    """The queue that is consumed: nothing is settled in it before somebody says so."""

    name = "source"

    def __init__(self) -> None:
        self.asked: list[Callable[[Any], None]] = []

    def is_colocated_with(self, queue: Any) -> bool:
        return True

    def settle_and_publish(self, receipts: Any, publishes: Any, reply: Callable[[Any], None]) -> None:
        self.asked.append(reply)


def test_over_a_socket_its_bytes_wait_to_be_confirmed_like_those_of_every_publish() -> None:
    source, intake = Source(), Intake(unconfirmed_bytes_max=1000)
    desk = SimpleNamespace(
        queue=lambda *_: source,
        publish_with_ack=Desk().publish_with_ack,
        prepare=lambda *_: SimpleNamespace(blocks=[], size=400),
    )
    throttle = SimpleNamespace(publish=lambda *_: None)
    told: list[Any] = []
    session: Any = SimpleNamespace(
        hub=SimpleNamespace(desk=desk, intake=intake, draining=False, throttle=throttle, spans=None),
        principal=SimpleNamespace(id="k", tenant="t"),
        who=SimpleNamespace(tenant="t"),
        encoding="json",
        gate=SimpleNamespace(enter=lambda verdict, store, refuse: store()),
        began=lambda requests: None,
        ended=lambda requests: None,
        count=lambda *_, **__: None,
        error=lambda _, error: told.append(error),
    )
    frame = Ack("source", ["receipt"], id=1, publish=PUBLISHES)
    ack(session, frame)
    assert intake.room.used == 400
    with pytest.raises(Overloaded, match="no room for 400 bytes of tenant 't'"):
        ack(session, frame)
    (decided,) = source.asked
    decided(full := StorageFull("the disk is full"))
    assert (intake.room.used, told) == (0, [full])
