"""The HTTP API of the real server: shapes, order of checks, conditions, and an answer for everything that is wrong."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from itertools import count

import httpx2
import pytest

from tests.conftest import StartServer
from tests.integration.calls import Client, pointers, publish, receive, refused
from tests.support.server import PushqServer

_numbers = count()


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def queue(http: Client) -> str:
    """A work queue of the test's own."""
    name = f"q{next(_numbers)}"
    assert http.put(f"/v1/queues/{name}", json={}).status_code == 201
    return name


# ------------------------------------------------------------------------------------------------------ queues


def test_a_queue_is_created_once_and_found_again(http: Client) -> None:
    made = http.put("/v1/queues/once", json={"tags": {"a": "b"}})
    assert made.status_code == 201
    body = made.json()
    assert list(body) == ["name", "config", "created_at", "owner", "stats"]
    assert (body["name"], body["config"]["tags"], body["config"]["kind"]) == ("once", {"a": "b"}, "work")
    assert set(body["stats"]) == {
        "ready", "in_flight", "delayed", "dead", "oldest_age_ms", "consumers", "bytes", "published_total",
        "acked_total",
    }  # fmt: skip
    again = http.put("/v1/queues/once", json={"tags": {"a": "b"}, "partitions": 1})
    assert (again.status_code, again.headers["etag"]) == (200, made.headers["etag"])
    refused(http.put("/v1/queues/once", json={}), 409, "conflict")


def test_a_queue_needs_no_body(http: Client) -> None:
    assert http.put("/v1/queues/without-body").status_code == 201


@pytest.mark.parametrize("name", ["-a", "a%20b", "a" * 129, "%C3%A4", "a.dead"])
def test_a_wrong_name_is_refused(http: Client, name: str) -> None:
    assert pointers(refused(http.put(f"/v1/queues/{name}"), 400, "invalid-request")) == ["/name"]


def test_a_config_says_all_that_is_wrong_with_it(http: Client) -> None:
    problem = refused(http.put("/v1/queues/wrong", json={"encrypted": "yes", "kindd": "x"}), 400, "invalid-request")
    assert pointers(problem) == ["/encrypted", "/kindd"]
    refused(http.get("/v1/queues/wrong"), 404, "queue-not-found")


def test_queues_are_listed_in_pages(http: Client) -> None:
    names = [f"paged-{n}" for n in range(5)]
    for name in names:
        http.put(f"/v1/queues/{name}")
    found: list[str] = []
    path = "/v1/queues?limit=2"
    while path:
        answer = http.get(path)
        page = answer.json()
        found += [item["name"] for item in page["items"]]
        assert len(page["items"]) <= 2 and set(page) == {"items", "next"}
        assert ("link" in answer.headers) == (page["next"] is not None)
        path = answer.headers["link"].partition(">")[0][1:] if page["next"] else ""
    assert found == sorted(found) and set(names) <= set(found)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "cursor=%21", "cursor=%FF", "limt=1", "limit=1&limit=2"]
)
def test_a_wrong_page_is_refused(http: Client, query: str) -> None:
    refused(http.get(f"/v1/queues?{query}"), 400, "invalid-request")


def test_a_change_needs_the_state_it_is_based_on(http: Client, queue: str) -> None:
    path, change = f"/v1/queues/{queue}", {"visibility_timeout_ms": 1000}
    etag = http.get(path).headers["etag"]
    refused(http.patch(path, json=change), 428, "precondition-required")
    changed = http.patch(path, json=change, headers={"If-Match": etag})
    assert changed.status_code == 200 and changed.json()["config"]["visibility_timeout_ms"] == 1000
    assert (
        changed.headers["etag"]
        != etag
        == http.patch(path, json=change, headers={"If-Match": etag}).request.headers["if-match"]
    )
    refused(http.patch(path, json=change, headers={"If-Match": etag}), 412, "precondition-failed")
    assert http.patch(path, json={}, headers={"If-Match": f'"x", {changed.headers["etag"]}'}).status_code == 200
    assert http.patch(path, json={}, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize("change", [{"kind": "stream"}, {"delivery": "exactly_once"}, {"ordering": "strict"}])
def test_what_a_queue_is_cannot_be_patched(http: Client, queue: str, change: dict[str, str]) -> None:
    answer = http.patch(f"/v1/queues/{queue}", json=change, headers={"If-Match": "*"})
    assert pointers(refused(answer, 400, "invalid-request")) == [f"/{next(iter(change))}"]


def test_deleting_over_http_is_off_and_says_what_works(http: Client, queue: str) -> None:
    problem = refused(http.delete(f"/v1/queues/{queue}?confirm={queue}&discard=true"), 403, "forbidden")
    assert "pushq queue delete" in problem["detail"]


def test_the_admin_socket_deletes_whatever_the_setting(shared_server: PushqServer, http: Client, queue: str) -> None:
    transport = httpx2.HTTPTransport(uds=str(shared_server.data / "admin.sock"))
    publish(http, queue, {"body": 1})
    with Client(base_url="http://local", transport=transport, headers=shared_server.headers) as local:
        path = f"/v1/queues/{queue}"
        assert pointers(refused(local.delete(path), 400, "invalid-request")) == ["/query/confirm"]
        assert pointers(refused(local.delete(f"{path}?confirm={queue}"), 400, "invalid-request")) == ["/query/discard"]
        moved = refused(local.delete(f"{path}?confirm={queue}&move_to=other"), 400, "invalid-request")
        assert pointers(moved) == ["/query/move_to"] and "there is no queue 'other'" in moved["detail"]
        gone = local.delete(f"{path}?confirm={queue}&discard=true")
        assert (gone.status_code, gone.json()["discarded"]) == (200, 1)
    refused(http.get(path), 404, "queue-not-found")


def test_a_queue_made_again_is_another_queue(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    with Client(base_url=server.url, headers=server.headers) as http:
        first = http.put("/v1/queues/again")
        publish(http, "again", {"body": 1})
        assert http.delete("/v1/queues/again?confirm=again&discard=true").status_code == 200
        second = http.put("/v1/queues/again")
        assert second.status_code == 201 and second.headers["etag"] != first.headers["etag"]
        assert second.json()["stats"]["ready"] == 0 and receive(http, "again") == []


# ----------------------------------------------------------------------------------------- paths, methods, headers


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/nothing", "/v1/queues/", "/v1/queues/a/b/c/d", "/nothing", "/v2/queues"]
)
def test_an_unknown_path_is_a_problem(http: Client, path: str) -> None:
    refused(http.get(path), 404, "not-found")


def test_a_server_without_a_cluster_is_its_one_node(http: Client) -> None:
    answer = http.get("/v1/cluster")
    assert answer.status_code == 200, answer.text
    state = answer.json()
    assert state["is_embedded"] and [node["alive"] for node in state["nodes"]] == [True]
    assert (state["clusters"], state["shards"], state["events"], state["manager"]) == ([], [], [], None)
    refused(http.get("/v1/cluster?cluster=main"), 404, "not-found")
    assert "cluster.coordinator" in refused(http.put("/v1/cluster/nodes/a/drain"), 404, "not-found")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/queues", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/queues/q/messages", "POST, GET, HEAD, OPTIONS"),
        ("GET", "/v1/queues/q/ack", "POST, OPTIONS"),
        ("DELETE", "/readyz", "GET, HEAD, OPTIONS"),
        ("TRACE", "/v1/queues", "GET, HEAD, OPTIONS"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(http: Client, method: str, path: str, allow: str) -> None:
    answer = http.request(method, path)
    refused(answer, 405, "method-not-allowed")
    assert set(answer.headers["allow"].split(", ")) == set(allow.split(", "))


def test_head_answers_as_get_without_a_body(http: Client, queue: str) -> None:
    for path in (f"/v1/queues/{queue}", "/v1/queues", "/readyz", "/openapi.json", "/metrics", "/"):
        head, get = http.head(path), http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]


def test_options_lists_the_methods(http: Client, queue: str) -> None:
    answer = http.options(f"/v1/queues/{queue}")
    assert answer.status_code == 204
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}
    assert http.options("/livez").status_code == 204


def test_every_api_answer_tells_what_is_left_of_the_rate(http: Client, shared_server: PushqServer) -> None:
    answers = [
        http.get("/v1/queues"),
        http.get("/v1/nothing"),
        http.put("/v1/queues/-"),
        httpx2.get(f"{shared_server.url}/v1/x"),
    ]
    for answer in answers:
        assert answer.headers["ratelimit-policy"] == '"principal";q=50000;w=1'
        assert answer.headers["ratelimit"].startswith('"principal";r=4')
    assert answers[-1].status_code == 401


def test_a_trace_is_named_in_the_problem(http: Client) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = http.get("/v1/nothing", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert answer.json()["trace_id"] == trace


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /v1/queues HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_and_closed(shared_server: PushqServer, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=5) as connection:
        connection.sendall(raw)
        answer = b""
        try:
            while part := connection.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass  # the rest of what we sent met a closed socket
    assert answer.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in answer


def test_requests_in_one_write_are_answered_in_order(shared_server: PushqServer) -> None:
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    missing = b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=5) as connection:
        connection.sendall(get + get + missing)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"]


# ------------------------------------------------------------------------------------------------ beside the API


def test_health_answers_without_a_key(shared_server: PushqServer) -> None:
    for path in ("/livez", "/readyz", "/lbz"):
        assert httpx2.get(shared_server.url + path).json()["status"] == "ok"
    assert httpx2.get(f"{shared_server.url}/readyz?verbose").json()["checks"] == {
        "draining": "ok",
        "disk": "ok",
        "load": "ok",
    }


def test_the_first_page_leads_on(shared_server: PushqServer) -> None:
    page = httpx2.get(f"{shared_server.url}/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert 'href="/docs"' in page.text


def test_a_page_asked_for_with_a_slash_at_its_end_is_where_it_is_without(shared_server: PushqServer) -> None:
    with Client(base_url=shared_server.url, follow_redirects=False) as http:
        for asked, place in (
            ("/docs/", "/docs"),
            ("/docs/search/?q=ack", "/docs/search?q=ack"),
            ("/console/", "/console"),
        ):
            answer = http.get(asked)
            assert (answer.status_code, answer.headers.get("location")) == (308, place)
        for nothing in ("/nothing/", "/demo/", "//evil.example/", "//docs/", "/docs/..%2f", "/docs%2f", "/console%2F"):
            assert http.get(shared_server.url + nothing).status_code == 404
        refused(http.post("/docs/"), 404, "not-found")
        assert http.get("/").status_code == 200


def test_problem_types_are_pages_of_this_server(http: Client) -> None:
    problem = http.get("/v1/nothing").json()
    page = http.get(problem["type"].partition("#")[0])
    assert page.status_code == 200 and 'id="not-found"' in page.text


def test_metrics_count_what_happened(http: Client, queue: str) -> None:
    publish(http, queue, {"body": 1}, {"body": 2})
    (message,) = receive(http, queue, max=1)
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": [message["receipt"]]})
    text = http.get("/metrics").text
    labels = f'{{queue="{queue}",tenant="default"}}'
    for line in (f"pushq_messages_published_total{labels} 2.0", f"pushq_messages_acked_total{labels} 1.0",
                 f"pushq_queue_ready_messages{labels} 1.0"):  # fmt: skip
        assert line in text


def test_pages_of_allowed_origins_may_read_answers(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_HTTP__ALLOWED_ORIGINS": "https://shop.example"})
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, ce-id"}
    with Client(base_url=server.url) as http:
        allowed = http.options("/v1/queues/q/messages", headers={"Origin": "https://shop.example", **preflight})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, "https://shop.example")
        assert allowed.headers["access-control-allow-headers"] == "authorization, ce-id"
        foreign = http.options("/v1/queues/q/messages", headers={"Origin": "https://evil.example", **preflight})
        assert foreign.status_code == 401 and "access-control-allow-origin" not in foreign.headers
        read = http.get("/v1/queues", headers={"Origin": "https://shop.example", **server.headers})
        assert read.headers["access-control-allow-origin"] == "https://shop.example"
        assert "RateLimit" in read.headers["access-control-expose-headers"]
        unread = http.get("/v1/queues", headers={"Origin": "https://evil.example", **server.headers})
        assert "access-control-allow-origin" not in unread.headers
