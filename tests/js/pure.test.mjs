/** The rules of the SDK that need no connection. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {EventParser, LIMITS, PushqError, askedMs, backoffMs, closeAdvice, retryMs, tokenExpiry} from "../../push/js/pushq.js";

test("back-off is anywhere below a window that doubles from half a second to twenty", () => {
  const windows = [0, 1, 2, 3, 4, 5, 6, 50].map((failures) => backoffMs(failures, 1));
  assert.deepEqual(windows, [500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
  assert.equal(backoffMs(3, 0), 0);
  assert.equal(backoffMs(3, 0.25), 1000);
});

test("a failed message waits between half of a window and all of it, which doubles from one second to sixty", () => {
  assert.deepEqual([1, 2, 3, 6, 7, 50].map((attempt) => retryMs(attempt, 1)), [1000, 2000, 4000, 32000, 60000, 60000]);
  assert.deepEqual([1, 50].map((attempt) => retryMs(attempt, 0)), [500, 30000]);
});

test("nobody comes back earlier than the server asks, and the jitter comes after it", () => {
  assert.equal(backoffMs(0, 0.5, 10_000), 10_250);
  assert.equal(backoffMs(9, 0.5, 100), 10_100);
});

test("of more than two minutes that are asked, between one and two are kept", () => {
  const asked = [[120_000, 0], [86_400_000, 0], [86_400_000, 0.5], [999_999_999_000, 1]];
  assert.deepEqual(asked.map(([ms, random]) => askedMs(ms, random)), [120_000, 60_000, 90_000, 120_000]);
  assert.equal(backoffMs(0, 0.5, 86_400_000), 90_250);
});

test("close codes from 4500 to 4999 stop, 4401 wants a new token, all others reconnect", () => {
  for (const code of [4500, 4501, 4509, 4999]) assert.equal(closeAdvice(code), "stop");
  for (const code of [1000, 1006, 1012, 3000, 4000, 4008, 4499, 5000]) assert.equal(closeAdvice(code), "reconnect");
  assert.equal(closeAdvice(4401), "refresh");
});

test("a token's end comes from its callback or from the JWT itself, and an API key has none", () => {
  const jwt = `e30.${btoa(JSON.stringify({exp: 1_800_000_000})).replaceAll("=", "")}.c2ln`;
  assert.equal(tokenExpiry(jwt), 1_800_000_000_000);
  assert.equal(tokenExpiry({token: "x", expires_at: "2030-01-01T00:00:00Z"}), Date.UTC(2030, 0, 1));
  assert.equal(tokenExpiry({token: jwt}), 1_800_000_000_000);
  assert.equal(tokenExpiry({token: jwt, expires_at: "soon"}), 1_800_000_000_000);
  for (const token of ["pushq_1_secret", {}, {token: "x", expires_at: "soon"}, "a.b.c", null, undefined]) assert.equal(tokenExpiry(token), Infinity);
});

test("a problem becomes an error that says whether trying again helps", () => {
  const error = PushqError.from({code: "overloaded", status: 503, detail: "too much", retry_after_ms: 250});
  assert.deepEqual([error.code, error.status, error.retriable, error.retryAfterMs], ["overloaded", 503, true, 250]);
  assert.equal(PushqError.from({code: "forbidden", status: 403, title: "Forbidden"}).retriable, false);
});

const STREAM = 'retry: 10\n\n: hello\n\nid: 7\r\nevent: gap\rdata: {"from":1,\ndata: "to":2}\n\nid\ndata:x: y\n\ndata\n\n';

test("an event stream is read the same however it is cut", () => {
  const whole = new EventParser().push(`\uFEFF${STREAM}`);
  assert.deepEqual(whole, [
    {event: "gap", data: '{"from":1,\n"to":2}', id: "7"},
    {event: "message", data: "x: y", id: ""},
    {event: "message", data: "", id: ""},
  ]);
  for (let size = 1; size < STREAM.length; size += 1) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < STREAM.length; at += size) events.push(...parser.push(STREAM.slice(at, at + size)));
    assert.deepEqual(events, whole, `in pieces of ${size}`);
  }
});

test("the id of a stream stays until another comes, also over events without data", () => {
  const events = new EventParser().push("id: 1\n\ndata: a\n\ndata: b\n\nid: 2\ndata: c\n\n");
  assert.deepEqual(events.map(({id}) => id), ["1", "1", "2"]);
});

test("an endless event is refused before it fills the memory", () => {
  const parser = new EventParser(1000);
  assert.throws(() => parser.push(`data: ${"x".repeat(2000)}`), {code: "disconnected"});
  const lines = new EventParser(1000);
  assert.throws(() => lines.push(`data: ${"x".repeat(500)}\n`.repeat(5)), {code: "disconnected"});
});

test("every limit is a positive number with a name", () => {
  for (const [name, value] of Object.entries(LIMITS)) assert.ok(value > 0, name);
});
