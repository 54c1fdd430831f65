"""Under load a publish is refused by its head: its messages are not looked at, and everything else is as ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.model import Overloaded, PushqError, QueueConfig, QueueNotFound
from push.intake import Intake
from push.ports import Unmetered
from push.session.requests import _made
from push.session.session import Session
from throttling.admission import Level


class Wire:
    """What a session wrote."""

    is_writable = True

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.closed = 0

    def send_frame(self, payload: bytes, encoding: str) -> None:
        codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
        self.frames.append(codec.decode(payload))

    def close(self, code: int, reason: str) -> None:
        self.closed = code


class Desk:
    """Knows one queue, whose line is full, and prepares nothing."""

    def __init__(self, full: Overloaded | None) -> None:
        self.queue = SimpleNamespace(config=QueueConfig(), why_full=lambda messages, size: full)
        self.prepared = 0

    def publish_to(self, principal: Any, name: str) -> Any:
        if name != "q":
            raise QueueNotFound(name)
        return self.queue

    def made_by_publish(self, principal: Any, name: str, until: float) -> None:
        return None

    def prepare_plain(self, *args: Any, **kwargs: Any) -> Any:
        self.prepared += 1
        raise PushqError("read as a whole", code="unavailable")

    prepare = prepare_plain


def session(intake: Intake, full: Overloaded | None, encoding: Any = "json") -> tuple[Session, Wire, Desk]:
    wire, desk = Wire(), Desk(full)
    hub: Any = SimpleNamespace(
        intake=intake,
        desk=desk,
        meter=Unmetered(),
        now_ms=1,
        awake_ms=lambda: 1,
        next_ping_ms=lambda: 1,
        loop=SimpleNamespace(time=lambda: 1.0),
        waits_until=lambda timeout_ms, came=None: 1.0,
        until_ms=lambda until: 1,
        draining=False,
        spans=None,
        flush_soon=lambda session: None,
    )
    principal: Any = SimpleNamespace(id="k", tenant="t")
    made = Session(hub, wire, encoding, principal, "")  # type: ignore[arg-type]
    made.opened = True
    return made, wire, desk


def publish(encoding: str = "json", queue: str = "q") -> bytes:
    codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    body: Any = "x" if encoding == "json" else b"x"
    frame = {"type": "publish", "queue": queue, "id": 7, "messages": [{"body": body}]}
    return bytes(codec.encode(frame))


FULL = Overloaded("queue 'q': 10000 messages wait for the disk")


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_publish_to_a_full_line_is_refused_by_its_id_and_not_read(encoding: str) -> None:
    intake = Intake()
    intake.met_end()
    made, wire, desk = session(intake, FULL, encoding)
    made.receive(publish(encoding))
    (frame,) = wire.frames
    assert (frame["type"], frame["id"], frame["problem"]["code"]) == ("error", 7, "overloaded")
    assert "10000 messages" in frame["problem"]["detail"] and frame["problem"]["retry_after_ms"] >= 500
    assert not desk.prepared and intake.refused == {("publish", "line"): 1}


def test_at_the_last_level_a_publish_is_refused_by_its_head_too() -> None:
    intake = Intake()
    intake.set_level(Level.NO_PUBLISHES, "82% of the memory limit is used")
    intake.look()
    made, wire, desk = session(intake, None)
    made.receive(publish())
    assert "82%" in wire.frames[0]["problem"]["detail"] and not desk.prepared


def test_a_line_with_room_takes_it_although_others_were_refused() -> None:
    intake = Intake()
    intake.met_end()
    made, wire, desk = session(intake, None)
    made.receive(publish())
    made.turn_ended()
    assert desk.prepared == 1 and wire.frames[0]["problem"]["detail"] == "read as a whole"


def test_an_unknown_queue_is_told_as_ever() -> None:
    intake = Intake()
    intake.met_end()
    made, wire, _ = session(intake, FULL)
    made.receive(publish(queue="nowhere"))
    made.turn_ended()
    assert wire.frames[0]["problem"]["code"] == "queue-not-found"


def test_without_load_nobody_looks_at_heads() -> None:
    made, _, desk = session(Intake(), FULL)
    made.receive(publish())
    made.turn_ended()
    assert desk.prepared == 1


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_publish_of_very_many_messages_is_refused_by_its_number_under_its_id(encoding: str) -> None:
    codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    data = bytes(codec.encode({"type": "publish", "queue": "q", "messages": [{}] * 200_000, "id": 7}))
    made, wire, desk = session(Intake(), None, encoding)
    made.receive(data)
    (frame,) = wire.frames
    assert (frame["type"], frame["id"], wire.closed) == ("error", 7, 0)
    assert frame["problem"]["errors"][0]["pointer"] == "/messages" and not desk.prepared
    assert "at most 1000" in frame["problem"]["detail"]


def test_before_a_connect_a_publish_of_very_many_messages_closes_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(Session, "turn_away", lambda session, *why: told.append(why))
    made, _, _ = session(Intake(), None)
    made.opened = False
    made.receive(b'{"type":"publish","queue":"q","messages":[' + b"{}," * 200_000 + b"{}]}")
    ((_, error, code),) = told
    assert (error.code, code) == ("unauthenticated", 4501)


@pytest.mark.anyio
async def test_a_publish_whose_queue_could_not_be_made_by_a_fault_of_ours_is_answered() -> None:
    """Its client waited for ever."""

    async def fail() -> None:
        raise AssertionError("a fault of ours")

    making = asyncio.create_task(fail())
    await asyncio.wait({making})
    told: list[tuple[int, str]] = []
    session: Any = SimpleNamespace(
        ended=lambda: None, closed=False, error=lambda number, error: told.append((number, error.code))
    )
    _made(session, SimpleNamespace(id=7, queue="q"), [], False, 0.0, making)
    assert told == [(7, "internal")]
