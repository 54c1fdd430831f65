"""A page that holds one client of the JavaScript SDK, and what the tests do with it.

The page's state lives in `window.bench`: the client, what was confirmed, what the handler saw.
"""

from __future__ import annotations

import json
import urllib.request
from itertools import count
from typing import Any

from playwright.sync_api import Page

from tests.browser.waiting import wait_until
from tests.support.server import PushqServer

OPEN = """
async ({token, transports, limits}) => {
  const {connect} = await import("/static/pushq.js");
  const pushq = connect({token: async () => window.bench?.token ?? token, transports, limits});
  const bench = {pushq, confirmed: [], failed: [], seen: [], states: [], lost: 0, next: 0};
  bench.missing = () => {
    const seen = new Set(bench.seen.map(({body}) => body));
    return bench.confirmed.filter((n) => !seen.has(n));
  };
  pushq.addEventListener("state", ({detail}) => bench.states.push(detail.state));
  pushq.addEventListener("lost", ({detail}) => (bench.lost += detail.messages.length));
  pushq.addEventListener("problem", () => {});
  window.bench = bench;
}
"""

_SUBSCRIBE = """
async ({queue, options, failing}) => {
  const {pushq, seen} = window.bench;
  window.bench.subscription = pushq.subscribe(queue, options, async ({body, attempt, seq}) => {
    if (failing.includes(body) && attempt === 1) throw new Error("this one is refused once");
    seen.push({body, attempt, seq});
  });
  await window.bench.subscription.ready;
}
"""

_PUBLISH = """
async ({queue, bodies}) => {
  const confirmed = await window.bench.pushq.publishMany(queue, bodies.map((body) => ({body})));
  return confirmed.map(({seq}) => seq);
}
"""

_START_LOAD = """
({queue, everyMs}) => {
  const {bench} = window;
  bench.timer = setInterval(() => {
    const n = bench.next++;
    bench.pushq.publish(queue, n).then(() => bench.confirmed.push(n), (error) => bench.failed.push(error.message));
  }, everyMs);
}
"""

_STOP_LOAD = """
async () => {
  const {bench} = window;
  clearInterval(bench.timer);
  while (bench.confirmed.length + bench.failed.length < bench.next) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
"""

_SUMMARY = """
JSON.stringify({
  states: bench.states.slice(-10), published: bench.next,
  confirmed: bench.confirmed.length, failed: bench.failed.length,
  seen: bench.seen.length, missing: bench.missing().slice(0, 10),
})
"""
_tenants = count(1)


class SdkPage:
    """One page with one client, in a tenant of its own."""

    def __init__(self, page: Page, server: PushqServer) -> None:
        self.page = page
        self.server = server
        self.key = tenant_key(server)

    def open(self, *transports: str, **limits: int) -> None:
        self.page.goto(self.server.url)
        self.page.evaluate(OPEN, {"token": self.key, "transports": list(transports) or None, "limits": limits})

    def subscribe(self, queue: str, *, failing: tuple[object, ...] = (), **options: object) -> None:
        """Subscribes; bodies in `failing` are thrown at on their first attempt. Ready when it returns."""
        self.page.evaluate(_SUBSCRIBE, {"queue": queue, "options": options, "failing": list(failing)})

    def publish(self, queue: str, *bodies: object) -> list[int]:
        seqs: list[int] = self.page.evaluate(_PUBLISH, {"queue": queue, "bodies": list(bodies)})
        return seqs

    def start_load(self, queue: str, *, every_ms: int) -> None:
        self.page.evaluate(_START_LOAD, {"queue": queue, "everyMs": every_ms})

    def stop_load(self) -> None:
        """Stops the load and waits until each publish has its answer."""
        self.page.evaluate(_STOP_LOAD)

    def wait_until(self, condition: str) -> None:
        """Waits for a JavaScript expression over `bench`."""
        try:
            wait_until(self.page, condition)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.read(_SUMMARY)}") from None

    def read(self, expression: str) -> Any:
        return self.page.evaluate(f"() => {expression}")

    @property
    def transport(self) -> str | None:
        name: str | None = self.read("bench.pushq.transport")
        return name

    def close(self) -> None:
        self.page.evaluate("() => window.bench.pushq.close()")

    def api(self, method: str, path: str, body: object = None) -> Any:
        """One call of the HTTP API, beside the page."""
        return call(self.server, method, path, body, key=self.key)

    def create_queue(self, queue: str, **config: object) -> None:
        self.api("PUT", f"/v1/queues/{queue}", config)

    def stats(self, queue: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.api("GET", f"/v1/queues/{queue}")["stats"]
        return answer


def call(server: PushqServer, method: str, path: str, body: object = None, *, key: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data=data, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read() or b"null")


def tenant_key(server: PushqServer) -> str:
    """An admin key of a new tenant: tests that share a server do not see each other's queues."""
    tenant = f"t{next(_tenants)}"
    call(server, "PUT", f"/v1/tenants/{tenant}", {}, key=server.key)
    wanted = {"name": "test", "tenant": tenant, "scopes": ["admin"]}
    key: str = call(server, "POST", "/v1/keys", wanted, key=server.key)["key"]
    return key
