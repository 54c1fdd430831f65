"""The JavaScript SDK in real Chromium, over each transport, against the real server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page

from tests.browser.sdk import OPEN, SdkPage
from tests.support.server import PushqServer

TRANSPORTS = ["ws", "sse", "eventsource", "poll"]
OUTRUNNING = 400
"""Messages of a stream: many times what a page holds of it."""
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(scope="module")
def killed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    """One server for all tests here, some of which kill it and start it again."""
    with PushqServer(tmp_path_factory.mktemp("sdk") / "data", dev=True) as server:
        yield server


@pytest.fixture
def sdk(page: Page, killed_server: PushqServer) -> SdkPage:
    if not killed_server.is_running():  # a test failed between the kill and the start
        killed_server.kill()
        killed_server.start()
    sdk = SdkPage(page, killed_server)
    sdk.create_queue("work")
    sdk.create_queue("stream", kind="stream")
    return sdk


@every_transport
def test_a_published_message_is_pushed_and_acked(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    sdk.subscribe("work", credit=8)
    bodies = [{"n": n, "text": "grüße ☕"} for n in range(50)]
    seqs = sdk.publish("work", *bodies)
    assert seqs == sorted(set(seqs))
    sdk.wait_until("bench.seen.length >= 50")
    assert sdk.transport == transport
    sdk.close()
    assert sorted(sdk.read("bench.seen.map(({body}) => body.n)")) == list(range(50))
    assert sdk.read("bench.seen.every(({body}) => body.text === 'grüße ☕')")
    left = sdk.stats("work")
    assert (left["ready"], left["in_flight"], left["acked_total"]) == (0, 0, 50)


@every_transport
def test_a_handler_that_throws_gets_the_message_again(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    sdk.subscribe("work", credit=4, failing=("bad",))
    sdk.publish("work", "good", "bad")
    sdk.wait_until("bench.seen.length >= 2")
    sdk.close()
    assert sdk.read("bench.seen.map(({body, attempt}) => `${body} ${attempt}`).sort()") == ["bad 2", "good 1"]
    assert sdk.stats("work")["in_flight"] == 0


@every_transport
def test_nothing_confirmed_is_missing_after_a_kill(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    sdk.subscribe("work", credit=8)
    sdk.start_load("work", every_ms=10)
    sdk.wait_until("bench.seen.length >= 50")
    sdk.server.kill()
    sdk.wait_until("bench.pushq.state !== 'connected'")
    sdk.server.start()
    before = sdk.read("bench.next")
    sdk.wait_until(f"bench.pushq.state === 'connected' && bench.confirmed.length > {before}")
    sdk.stop_load()
    sdk.wait_until("bench.missing().length === 0")
    sdk.close()
    assert sdk.read("bench.failed") == [], "what the kill left unconfirmed is sent again"
    left = sdk.stats("work")
    assert (left["ready"], left["in_flight"]) == (0, 0)


@every_transport
def test_a_stream_goes_on_where_a_kill_cut_it(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    sdk.subscribe("stream", **{"from": "latest"})
    sdk.publish("stream", *range(10))
    sdk.wait_until("bench.seen.length >= 10")
    sdk.server.kill()
    sdk.wait_until("bench.pushq.state !== 'connected'")
    sdk.server.start()
    sdk.publish("stream", *range(10, 20))
    sdk.wait_until("bench.seen.length >= 20")
    assert sdk.read("bench.seen.map(({body}) => body)") == list(range(20)), "each once, in order"
    sdk.close()


@every_transport
def test_a_stream_that_is_cut_before_its_first_message_misses_none(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport, backoffBaseMs=20_000)
    sdk.page.evaluate("() => (Math.random = () => 0.1)")  # the wait after a cut is then 2 s
    sdk.subscribe("stream", **{"from": "latest"})
    sdk.server.kill()
    sdk.wait_until("bench.pushq.state === 'waiting'")
    sdk.server.start()
    sdk.api("POST", "/v1/queues/stream/messages", {"messages": [{"body": "while you were away"}]})
    assert sdk.read("bench.pushq.state") == "waiting"
    sdk.wait_until("bench.seen.length >= 1")
    assert sdk.read("bench.seen.map(({body}) => body)") == ["while you were away"]
    sdk.close()


@every_transport
def test_a_lease_lives_as_long_as_its_handler(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("short", visibility_timeout_ms=1500)
    sdk.open(transport)
    sdk.page.evaluate(
        """async () => {
          window.bench.subscription = window.bench.pushq.subscribe("short", {credit: 1}, async ({body, attempt}) => {
            await new Promise((resolve) => setTimeout(resolve, 3500));
            window.bench.seen.push({body, attempt});
          });
          await window.bench.subscription.ready;
        }"""
    )
    sdk.publish("short", "long work")
    sdk.wait_until("bench.seen.length >= 1")
    sdk.close()
    assert sdk.read("[bench.seen, bench.lost]") == [[{"body": "long work", "attempt": 1}], 0]
    assert sdk.stats("short")["acked_total"] == 1


@every_transport
def test_automatic_acks_need_no_handler_to_succeed(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    sdk.subscribe("work", credit=4, ack="auto", failing=(3,))
    sdk.publish("work", *range(20))
    sdk.wait_until("bench.seen.length >= 19")
    sdk.close()
    assert sorted(sdk.read("bench.seen.map(({body}) => body)")) == [n for n in range(20) if n != 3]
    left = sdk.stats("work")
    assert (left["ready"], left["in_flight"], left["acked_total"]) == (0, 0, 20)


@every_transport
@pytest.mark.parametrize("options", [{}, {"credit": 10}], ids=["as fast as read", "by credit"])
def test_a_stream_that_outruns_its_handler_stays_complete(
    sdk: SdkPage, transport: str, options: dict[str, int]
) -> None:
    sdk.open(transport, streamBacklogMessages=50)
    sdk.publish("stream", *range(OUTRUNNING))
    sdk.page.evaluate(
        """({options}) => {
          window.bench.pushq.subscribe("stream", {from: "earliest", ...options}, async ({body}) => {
            if (body % 10 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
            window.bench.seen.push({body});
          });
        }""",
        {"options": options},
    )
    sdk.wait_until(f"bench.seen.length >= {OUTRUNNING}")
    assert sdk.read("bench.seen.map(({body}) => body)") == list(range(OUTRUNNING)), "each once, in order"
    sdk.close()


@pytest.mark.parametrize("transport", ["ws", "poll"])
def test_a_message_that_is_too_large_fails_alone(sdk: SdkPage, transport: str) -> None:
    sdk.open(transport)
    outcomes = sdk.page.evaluate(
        """async () => {
          const bodies = ["before", "x".repeat(300_000), "after"];
          const outcomes = await Promise.allSettled(bodies.map((body) => window.bench.pushq.publish("work", body)));
          return outcomes.map(({reason}) => reason?.code ?? "stored");
        }"""
    )
    assert outcomes == ["stored", "message-too-large", "stored"]
    sdk.close()


def test_a_handler_that_outlives_its_limit_loses_the_lease_and_is_told(sdk: SdkPage) -> None:
    sdk.create_queue("short", visibility_timeout_ms=1500)
    sdk.open("ws")
    sdk.page.evaluate(
        """() => window.bench.pushq.subscribe("short", {credit: 1, maxHandlerMs: 100}, async (message) => {
          const {attempt, signal} = message;
          if (attempt === 1) await new Promise((resolve) => signal.addEventListener("abort", resolve));
          window.bench.seen.push({attempt, lost: message.lost});
        })"""
    )
    sdk.publish("short", "slow the first time")
    sdk.wait_until("bench.seen.length === 2")
    sdk.close()
    assert sdk.read("bench.seen.find(({attempt}) => attempt === 1).lost && bench.lost === 1")
    assert sdk.stats("short")["acked_total"] == 1


@every_transport
def test_a_key_that_ends_is_replaced_by_the_next_one(sdk: SdkPage, transport: str) -> None:
    until = datetime.now(UTC) + timedelta(seconds=2)
    scopes = ["publish:*", "consume:*", "view:*"]
    key = {"name": "short", "scopes": scopes, "expires_at": until.isoformat(timespec="milliseconds")}
    sdk.page.goto(sdk.server.url)
    sdk.page.evaluate(OPEN, {"token": sdk.api("POST", "/v1/keys", key)["key"], "transports": [transport]})
    sdk.subscribe("work", credit=4)
    sdk.page.evaluate("(token) => (window.bench.token = token)", sdk.key)
    sdk.page.wait_for_timeout((until - datetime.now(UTC)) / timedelta(milliseconds=1) + 100)
    sdk.publish("work", "under the new key")
    sdk.wait_until("bench.seen.length === 1")
    if transport != "poll":  # where each request is its own, the next one just brings the new key
        sdk.wait_until("bench.states.filter((state) => state === 'connected').length >= 2")
    sdk.publish("work", "and on")
    sdk.wait_until("bench.seen.length === 2")
    sdk.close()


def test_the_best_transport_is_the_websocket(sdk: SdkPage) -> None:
    sdk.open()
    sdk.publish("work", 1)
    assert sdk.transport == "ws"


def test_a_blocked_websocket_gives_way_to_sse(sdk: SdkPage) -> None:
    sdk.page.route_web_socket("**/v1/ws", lambda socket: socket.close())
    sdk.open()
    sdk.subscribe("work", credit=2)
    sdk.publish("work", "over SSE")
    sdk.wait_until("bench.seen.length === 1")
    assert sdk.transport == "sse"
    sdk.close()


def test_many_sse_subscriptions_leave_room_for_publishes(sdk: SdkPage) -> None:
    """A browser has six connections per host over HTTP/1.1: six streams would block every other request for ever."""
    for n in range(6):
        sdk.create_queue(f"many-{n}")
    sdk.open("sse")
    for n in range(6):
        sdk.subscribe(f"many-{n}", credit=4)
    for n in range(6):
        sdk.publish(f"many-{n}", n)
    sdk.wait_until("bench.seen.length === 6")
    sdk.close()
    assert sorted(sdk.read("bench.seen.map(({body}) => body)")) == list(range(6))


def test_a_wrong_key_stops_the_client_for_good(sdk: SdkPage) -> None:
    sdk.page.goto(sdk.server.url)
    for transport in ("ws", "sse", "poll"):
        error = sdk.page.evaluate(
            """async (transport) => {
              const {connect} = await import("/static/pushq.js");
              const pushq = connect({token: "pushq_no_such", transports: [transport]});
              return pushq.publish("work", 1).catch((error) => `${error.code} ${pushq.state}`);
            }""",
            transport,
        )
        assert error == "unauthenticated failed", transport


def test_a_clean_stop_says_bye_and_the_client_comes_back(sdk: SdkPage) -> None:
    sdk.open("ws")
    sdk.subscribe("work", credit=2)
    sdk.page.evaluate("() => window.bench.pushq.addEventListener('bye', ({detail}) => (window.bench.bye = detail))")
    sdk.server.restart()
    sdk.publish("work", "after the restart")
    sdk.wait_until("bench.seen.length === 1")
    assert sdk.read("bench.bye.code") == 4000
    sdk.close()
