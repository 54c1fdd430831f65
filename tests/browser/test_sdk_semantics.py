"""What a page may ask of a queue, in real Chromium over each transport: replies, order, groups, dead letters.

The same stories in more detail run under Node, in `tests/js/server`; only a browser has EventSource.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.sdk import SdkPage
from tests.support.server import PushqServer

TRANSPORTS = ["ws", "sse", "eventsource", "poll"]
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)

# In the page: `until` waits for a condition, ten seconds at most.
_STORY = """
async (argument) => {
  const {pushq} = window.bench;
  const until = async (isSo) => {
    for (let tries = 0; tries < 500 && !isSo(); tries += 1) await new Promise((resolve) => setTimeout(resolve, 20));
  };
  return await (%s)(pushq, until, argument);
}
"""


@pytest.fixture
def sdk(page: Page, shared_server: PushqServer) -> SdkPage:
    return SdkPage(page, shared_server)


def tell(sdk: SdkPage, story: str, argument: Any = None) -> Any:
    """Runs `async (pushq, until, argument) => …` in the page; what it returns."""
    return sdk.page.evaluate(_STORY % story, argument)


@every_transport
def test_a_request_gets_its_reply(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("prices")
    sdk.open(transport)
    answers = tell(
        sdk,
        """async (pushq) => {
          pushq.subscribe("prices", {credit: 4}, (message) => message.reply({price: message.body.item * 2}));
          const ask = (item) => pushq.request("prices", {item}, {timeoutMs: 10_000});
          const replies = await Promise.all([1, 2, 3].map(ask));
          return replies.map(({body}) => body.price);
        }""",
    )
    sdk.close()
    assert answers == [2, 4, 6]


@every_transport
def test_a_request_without_a_reply_says_so_in_time(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("prices")
    sdk.open(transport)
    told = tell(
        sdk,
        """async (pushq) => {
          const began = Date.now();
          const error = await pushq.request("prices", 1, {timeoutMs: 1_000}).catch((error) => error);
          return [error.name, error.isStored, Date.now() - began];
        }""",
    )
    sdk.close()
    assert told[:2] == ["RequestTimeout", True]
    assert 990 <= told[2] < 3_000


@every_transport
def test_a_dead_letter_says_why(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("orders", max_attempts=2)
    sdk.open(transport)
    letter = tell(
        sdk,
        """async (pushq, until) => {
          pushq.subscribe("orders", {credit: 1}, (message) => message.nack({reason: `no stock ${message.attempt}`}));
          await pushq.publish("orders", {order: 7});
          const dead = [];
          pushq.subscribe("orders.dead", {credit: 1}, (message) => void dead.push(message));
          await until(() => dead.length);
          return [dead[0].body, dead[0].deadLetter];
        }""",
    )
    sdk.close()
    body, why = letter
    assert body == {"order": 7}
    assert (why["from"], why["reason"], why["attempts"]) == ("orders", "max_attempts", 2)
    assert "no stock 2" in str(why["history"])


@every_transport
def test_keys_of_a_strict_queue_stay_in_order_over_a_failure(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("strict", ordering="strict")
    sdk.open(transport)
    done = tell(
        sdk,
        """async (pushq, until) => {
          const done = {a: [], b: []};
          const failed = new Set();
          pushq.subscribe("strict", {credit: 16}, async ({body, key}) => {
            await new Promise((resolve) => setTimeout(resolve, 2));
            if (body === 3 && !failed.has(key)) {
              failed.add(key);
              throw new Error("once");
            }
            done[key].push(body);
          });
          const numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
          await pushq.publishMany("strict", numbers.flatMap((body) => ["a", "b"].map((key) => ({body, key}))));
          await until(() => done.a.length + done.b.length >= 20);
          return done;
        }""",
    )
    sdk.close()
    assert done == {"a": list(range(10)), "b": list(range(10))}


@every_transport
def test_a_group_goes_on_where_it_acked(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("news", kind="stream")
    sdk.open(transport)
    seen = tell(
        sdk,
        """async (pushq, until) => {
          const seen = [];
          const read = () => pushq.subscribe("news", {group: "g", from: "earliest", credit: 4}, ({body}) => {
            seen.push(body);
          });
          const first = read();
          await first.ready;
          await pushq.publishMany("news", [0, 1, 2, 3, 4].map((body) => ({body})));
          await until(() => seen.length >= 5);
          await first.close();
          await read().ready;
          await pushq.publish("news", 5);
          await until(() => seen.length >= 6);
          return seen;
        }""",
    )
    sdk.close()
    assert seen == [0, 1, 2, 3, 4, 5]


@every_transport
def test_an_ack_publishes_in_the_same_step(sdk: SdkPage, transport: str) -> None:
    sdk.create_queue("bills")
    sdk.create_queue("orders", colocate_with="bills")
    sdk.open(transport)
    sdk.publish("orders", 7)
    tell(
        sdk,
        """async (pushq, until) => {
          let isDone = false;
          pushq.subscribe("orders", {credit: 1}, async (message) => {
            await message.ack({publish: [{queue: "bills", messages: [{body: {bill: message.body}}]}]});
            isDone = true;
          });
          await until(() => isDone);
        }""",
    )
    sdk.close()
    assert sdk.stats("orders")["acked_total"] == 1
    assert sdk.stats("bills")["ready"] == 1
