"""What a reader and a writer of the data source do when a gateway answers in parts, or half an answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyspark.sql import Row

from spark.source.errors import DataLost, Refused, Unreachable, WrongRow
from spark.source.gateway import Gateway
from spark.source.ids import DerivedIds
from spark.source.offsets import Split
from spark.source.options import Options, parsed
from spark.source.stream import read_split
from spark.source.writer import Written, written

STORED = {"id": None, "seq": 1, "partition": 0, "duplicate": False}


class Stub:
    """A gateway that gives the answers it was told to, in their order, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: list[tuple[bytes, int | None]] = []
        """The text of each, and how many bytes of it are sent before the connection ends."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                size = int(self.headers.get("content-length", 0))
                stub.asked.append(json.loads(self.rfile.read(size) or b"{}"))
                text, cut = stub.answers.pop(0)
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text[:cut])
                self.close_connection = cut is not None

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def will_answer(self, *answers: dict[str, Any], cut: int | None = None) -> None:
        self.answers += [(json.dumps(answer).encode(), cut) for answer in answers]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def options(self, **more: str) -> Options:
        return parsed({"url": self.url, "queue": "q", "token": "k", "retrySeconds": "20", **more}, {})

    def gateway(self) -> Gateway:
        return Gateway(self.url, "k", 20)


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    yield made
    made.close()


def refused(status: int, code: str) -> dict[str, Any]:
    return {**STORED, "error": {"status": status, "code": code, "detail": f"partition 1: {code}", "retry_after_ms": 1}}


def answer(*each: dict[str, Any]) -> dict[str, Any]:
    return {"messages": list(each)}


def write(stub: Stub, *ids: str | None, **more: str) -> Written:
    rows = [Row(id=name, body=str(number)) for number, name in enumerate(ids)]
    return written(stub.options(**more), iter(rows), DerivedIds("run", None, 0))


def test_messages_that_a_partition_refused_for_now_are_sent_again_and_no_others(stub: Stub) -> None:
    stub.will_answer(answer(STORED, refused(503, "overloaded"), STORED), answer({**STORED, "duplicate": True}))
    done = write(stub, "a", "b", "c")
    assert [[message["id"] for message in asked["messages"]] for asked in stub.asked] == [["a", "b", "c"], ["b"]]
    assert (done.messages, done.known) == (3, 1)


@pytest.mark.parametrize(("status", "code"), [(507, "queue-full"), (409, "conflict")])
def test_messages_that_a_partition_refused_for_good_fail_the_write(stub: Stub, status: int, code: str) -> None:
    stub.will_answer(answer(STORED, refused(status, code)))
    with pytest.raises(Refused, match=rf"1 of 2 messages.*partition 1.*{status} {code}"):
        write(stub, "a", "b")


def test_a_message_of_several_that_is_too_large_says_what_to_do(stub: Stub) -> None:
    stub.will_answer(answer(STORED, refused(413, "message-too-large")))
    with pytest.raises(WrongRow, match="max_message_bytes"):
        write(stub, "a", "b")


def test_what_may_have_been_stored_is_sent_again_only_where_ids_are_known(stub: Stub) -> None:
    unknown = refused(504, "outcome-unknown")
    stub.will_answer(answer(STORED, unknown), answer(STORED))
    assert write(stub, "a", "b").messages == 2
    stub.will_answer(answer(STORED, unknown))
    with pytest.raises(Refused, match="outcome-unknown"):
        write(stub, None, None, exactlyOnce="false")


def test_messages_that_are_refused_for_too_long_fail_the_write(stub: Stub) -> None:
    stub.will_answer(answer(STORED, refused(503, "overloaded")))
    with pytest.raises(Unreachable, match=r"1 of 2 messages.*overloaded"):
        write(stub, "a", "b", retrySeconds="0")


def test_an_answer_that_ends_in_its_middle_is_asked_for_again(stub: Stub) -> None:
    stub.will_answer({"messages": []}, cut=5)
    stub.will_answer({"messages": []})
    with stub.gateway() as gateway:
        assert json.loads(gateway.ask("GET", "/v1/queues")) == {"messages": []}
    assert len(stub.asked) == 2


def test_a_stream_that_ends_before_a_split_does_is_no_empty_read(stub: Stub) -> None:
    page = {"uid": "7", "epoch": 1, "first": 0, "next": 3, "messages": []}
    stub.will_answer(page)
    with pytest.raises(DataLost, match=r"ends at offset 3, but ended at 9"):
        list(read_split(stub.options(), Split(0, 3, 9), "7"))
    stub.will_answer(page)
    assert list(read_split(stub.options(failOnDataLoss="false"), Split(0, 3, 9), "7")) == []
