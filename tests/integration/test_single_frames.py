"""Frames that one read brings are handled together; over a socket nobody can tell them from frames that come alone."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import pytest

from tests.support.hostile import PING, TEXT, frame, upgraded
from tests.support.server import PushqServer
from tests.support.ws import create_queue

BESIDE = "beside-single"
_names = itertools.count(1)
Frame = dict[str, Any]


def heard(connection: socket.socket) -> Generator[Frame]:
    """What the server says, object by object; its control frames are left out."""
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(2)
            assert len(head) == 2, "the server closed the connection"
            first, second = head
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
            data = stream.read(size)
            if first & 0x0F == TEXT:
                found = msgspec.json.decode(data)
                yield from found if isinstance(found, list) else [found]


def publish(queue: str, *bodies: Any, **more: Any) -> Frame:
    return {"type": "publish", "queue": queue, "messages": [{"body": body} for body in bodies], **more}


def said_of(queue: str) -> list[Frame]:
    """A producer's frames: usual ones, wrong ones, others between them; the last one is answered last."""
    sent: list[Frame] = [publish(queue, number, id=number) for number in range(1, 101)]
    sent += [publish(queue, "x", "y", id="two"), publish(queue, id="none"), publish(queue, 1, id="l" * 65)]
    sent += [publish("nowhere", 1, id=200), publish(queue, "silent"), publish(queue, "x" * 300_000, id="large")]
    sent += [{"type": "ping", "id": "ping"}, publish(queue, 2, id=202)]
    sent += [{**publish(queue, id=201, idempotency_key="k"), "messages": [{"body": 1, "id": "named"}]}]
    sent += [{**publish(queue, 3, id=203), "timeout_ms": 5000}, {"type": "ack", "queue": "nowhere", "receipts": []}]
    sent += [{"type": "ack", "queue": queue, "receipts": ["forged"]}] * 3
    return [*sent, publish(queue, 4, id=204), publish(queue, 5, id="last")]


def talk(server: PushqServer, queue: str, frames: Sequence[Frame], *, is_alone: bool) -> list[Frame]:
    """Sends frames in one piece, or each when the one before it is answered; what came, up to the last answer."""
    answers: list[Frame] = []
    authorization = f"Authorization: Bearer {server.key}"
    with upgraded(server, authorization) as (connection, _), closing(heard(connection)) as said:
        connection.sendall(frame(TEXT, msgspec.json.encode({"type": "connect"})))
        assert next(said)["type"] == "connected"
        data = [frame(TEXT, msgspec.json.encode(one)) for one in frames]
        data.insert(50, frame(PING, b"are you there"))
        if not is_alone:
            connection.sendall(b"".join(data))
        for number, one in enumerate(data):
            if is_alone:
                # What has no answer of its own is over when the frame behind it is answered.
                behind = {"type": "ack", "queue": BESIDE, "receipts": [], "id": f"behind {number}"}
                connection.sendall(one + frame(TEXT, msgspec.json.encode(behind)))
                while (answer := next(said)).get("id") != behind["id"]:
                    answers.append(answer)
        while not any(one.get("id") == "last" for one in answers):
            answers.append(next(said))
    return answers


def as_sorted(frames: Sequence[Frame], queue: str) -> list[str]:
    """Sorted: an error is told at once, an answer when its messages are on the disk."""
    return sorted(msgspec.json.encode(one, order="sorted").decode().replace(queue, "QUEUE") for one in frames)


@pytest.mark.parametrize("config", [{}, {"encrypted": False}, {"kind": "stream"}], ids=["work", "clear", "stream"])
def test_a_producer_is_told_the_same_of_frames_in_one_piece_as_of_frames_one_by_one(
    shared_server: PushqServer, config: dict[str, Any]
) -> None:
    told = []
    for is_alone in (True, False):
        queue = f"single{next(_names)}"
        create_queue(shared_server, queue, **config)
        create_queue(shared_server, BESIDE)
        answers = talk(shared_server, queue, said_of(queue), is_alone=is_alone)
        oks = [one for one in answers if one["type"] == "ok" and one["id"] != 201]
        places = [row["seq"] for one in oks for row in one["messages"]]
        assert places == sorted(places), "in the order in which they were sent"
        told.append(as_sorted(answers, queue))
    assert told[0] == told[1]


def test_a_consumer_settles_with_acks_in_one_piece_what_it_would_settle_one_by_one(shared_server: PushqServer) -> None:
    queue = f"single{next(_names)}"
    create_queue(shared_server, queue)
    authorization = f"Authorization: Bearer {shared_server.key}"
    with upgraded(shared_server, authorization) as (connection, _), closing(heard(connection)) as said:

        def say(*frames: Frame) -> None:
            connection.sendall(b"".join(frame(TEXT, msgspec.json.encode(one)) for one in frames))

        say({"type": "connect"}, *[publish(queue, number) for number in range(200)])
        say({"type": "subscribe", "queue": queue, "credit": 50, "id": "sub"})
        got: list[int] = []
        while len(got) < 200:
            one = next(said)
            if one["type"] == "deliver":
                got += [message["body"] for message in one["messages"]]
                acks = [{"type": "ack", "queue": queue, "receipts": [m["receipt"]]} for m in one["messages"]]
                say(*acks)
        assert got == list(range(200)), "each gives its credit back, and the order stays"
        say({"type": "ack", "queue": queue, "receipts": ["forged"], "id": "end"})
        while next(said).get("id") != "end":
            pass
