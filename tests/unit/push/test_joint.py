"""An ack that publishes goes through the door of every publish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.model import Overloaded, PushqError, QueueConfig, StorageFull
from push.intake import Intake
from push.joint import outputs
from push.ports import Prepared
from push.protocol import AckPublish, PublishMessage
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
    intake.set_level(Level.NO_PUBLISHES, "82% of its memory is used")
    intake.look()
    with pytest.raises(Overloaded, match="82%"):
        asked(hub_of(desk, intake))
    assert not desk.prepared and intake.refused == {("publish", "load"): 1}


def test_a_server_that_drains_takes_none() -> None:
    with pytest.raises(PushqError, match="shutting down"):
        asked(hub_of(Desk(), draining=True))
