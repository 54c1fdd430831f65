"""What etcd's answers mean: surely not done, or perhaps; and which servers are not used."""

from __future__ import annotations

import json

import pytest

from backend_store.cluster.coordinator import Compacted, SessionLost
from backend_store.cluster.core.values import NEVER, Put, Revision, SessionId, Transaction, absent, has_value
from backend_store.cluster.etcd.codec import (
    AlreadyThere,
    RangeAnswer,
    TokenRefused,
    decode,
    error_of,
    range_request,
    record_of,
    txn_request,
    version_problem,
    watch_request,
)
from backend_store.model import (
    Forbidden,
    InvalidRequest,
    OutcomeUnknown,
    PushqError,
    StorageFull,
    Unauthenticated,
    Unavailable,
)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("etcdserver: no leader", Unavailable),
        ("etcdserver: too many requests", Unavailable),
        ("etcdserver: mvcc: database space exceeded", StorageFull),
        ("etcdserver: requested lease not found", SessionLost),
        ("etcdserver: lease already exists", AlreadyThere),
        ("etcdserver: mvcc: required revision has been compacted", Compacted),
        ("etcdserver: mvcc: required revision is a future revision", InvalidRequest),
        ("etcdserver: request is too large", InvalidRequest),
        ("etcdserver: duplicate key given in txn request", InvalidRequest),
        ("etcdserver: permission denied", Forbidden),
        ("etcdserver: invalid auth token", TokenRefused),
        ("etcdserver: revision of auth store is old", TokenRefused),
        ("etcdserver: authentication failed, invalid user ID or password", Unauthenticated),
        # Whatever a server says that gave up after it may have proposed the write leaves it open.
        ("etcdserver: request timed out", OutcomeUnknown),
        ("etcdserver: request timed out, possibly due to previous leader failure", OutcomeUnknown),
        ("etcdserver: leader changed", OutcomeUnknown),
        ("etcdserver: server stopped", OutcomeUnknown),
        ("something that nobody has heard before", OutcomeUnknown),
    ],
)
def test_an_error_says_whether_a_write_was_surely_not_made(message: str, kind: type[PushqError]) -> None:
    answer = json.dumps({"error": message, "message": message, "code": 14}).encode()
    assert type(error_of("http://h", 503, answer)) is kind


def test_an_answer_that_is_no_json_leaves_a_write_open() -> None:
    error = error_of("http://h", 502, b"<html>bad gateway</html>")
    assert type(error) is OutcomeUnknown and "502" in error.detail and "bad gateway" in error.detail


@pytest.mark.parametrize("version", ["3.4.0", "3.4.23", "3.5.3", "3.5.21", "3.6.0", "3.6.0-rc.1", "3.10.1"])
def test_these_servers_are_used(version: str) -> None:
    assert version_problem(version) is None


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.2", "3.5.0-alpha.0", "3.3.27", "2.3.8", "4.0.0", "", "x"])
def test_these_servers_are_not_used(version: str) -> None:
    assert version_problem(version)


def test_numbers_are_text_and_bytes_are_base64() -> None:
    bound = Put(b"\xff", b"\x00", SessionId(2**63 - 1))
    request = txn_request(b"ns/", Transaction((absent(b"k"), has_value(b"k", b"v")), (bound,)))
    assert request["compare"] == [
        {"key": "bnMvaw==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
        {"key": "bnMvaw==", "target": "VALUE", "result": "EQUAL", "value": "dg=="},
    ]
    assert request["success"] == [{"request_put": {"key": "bnMv/w==", "value": "AA==", "lease": "9223372036854775807"}}]
    answer = decode(
        b'{"header":{"revision":"9007199254740993","cluster_id":"18446744073709551615"},"count":"1","kvs":[{"key":"bnMv/w==",'
        b'"create_revision":"2","mod_revision":"9007199254740993","version":"3","lease":"9223372036854775807"}]}',
        RangeAnswer,
    )
    record = record_of(b"ns/", answer.kvs[0])
    assert (record.key, record.value, record.changed_at, record.session) == (b"\xff", b"", 2**53 + 1, 2**63 - 1)


def test_a_read_of_everything_has_an_end_that_etcd_understands() -> None:
    request = range_request(b"\xff", after=b"", limit=5, at=None, changed_after=NEVER)
    assert (request["key"], request["range_end"]) == ("/w==", "AA==")
    assert "revision" not in request and "min_mod_revision" not in request
    page = range_request(b"p", after=b"p1", limit=5, at=Revision(7), changed_after=Revision(3))
    assert (page["key"], page["revision"], page["min_mod_revision"]) == ("cDEA", "7", "4")


def test_a_watch_asks_for_the_revision_it_has_already() -> None:
    assert watch_request(b"p", Revision(7))["create_request"]["start_revision"] == "7"
    assert watch_request(b"p", NEVER)["create_request"]["start_revision"] == "1"
