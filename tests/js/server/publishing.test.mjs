/**
 * Publishing to the real server.
 *
 * Needs of it: `sequencing` and `dedupe` in publish answers; `dedupe: id`, `delivery: exactly_once`, `sequencing`
 * producer and clock, `max_messages`, `delay_ms`, `deliver_at`, `ttl_ms`, `priorities`.
 */

import assert from "node:assert/strict";

import {HybridClock} from "../../../push/js/pushq.js";
import {client, publishText, queue, stats, story, until} from "./world.mjs";

/** Everything in a queue, in the order of its delivery: `count` messages, one at a time. */
async function taken(pushq, name, count) {
  const seen = [];
  const subscription = pushq.subscribe(name, {credit: 1}, (message) => void seen.push(message));
  await until(() => seen.length >= count, `${count} messages of ${name}`);
  await subscription.close();
  return seen;
}

story("a message with a known id is stored once, and answered with the first one's place", async (t) => {
  const pushq = client(t);
  const name = await queue({dedupe: "id"});
  const first = await pushq.publish(name, "one", {id: "order-7"});
  const second = await pushq.publish(name, "one", {id: "order-7"});
  assert.deepEqual(second, {...first, duplicate: true});
  assert.equal(first.duplicate, false);
  assert.equal((await stats(name)).ready, 1);
});

story("exactly once means that made-up ids stay: what is sent again is known again", async (t) => {
  const pushq = client(t);
  const name = await queue({delivery: "exactly_once"});
  await pushq.publish(name, 1);
  await pushq.publish(name, 2);
  assert.match(pushq.published.at(-1), /"id":"[0-9a-f]{32}"/);
});

story("a queue by arrival that keeps duplicates is soon sent bodies alone", async (t) => {
  const pushq = client(t);
  const name = await queue();
  await pushq.publish(name, "first");
  await pushq.publish(name, "second");
  assert.match(pushq.published.at(-1), /\{"body":"second"\}/);
});

story("a full queue refuses those that do not fit, and each by itself", async (t) => {
  const pushq = client(t);
  const name = await queue({max_messages: 2});
  const outcomes = await Promise.allSettled([1, 2, 3, 4].map((n) => pushq.publish(name, n)));
  assert.deepEqual(outcomes.map(({reason}) => reason?.code), [undefined, undefined, "queue-full", "queue-full"]);
});

story("delayed and scheduled messages come when they are due, not before", async (t) => {
  const pushq = client(t);
  const name = await queue();
  const began = Date.now();
  await pushq.publish(name, "delayed", {delayMs: 400});
  await pushq.publish(name, "scheduled", {deliverAt: new Date(began + 800)});
  await pushq.publish(name, "now");
  const arrivals = [];
  pushq.subscribe(name, {credit: 4}, ({body}) => void arrivals.push([body, Date.now() - began]));
  await until(() => arrivals.length === 3);
  assert.deepEqual(arrivals.map(([body]) => body), ["now", "delayed", "scheduled"]);
  assert.ok(arrivals[1][1] >= 395 && arrivals[2][1] >= 795, JSON.stringify(arrivals));
});

story("an expired message is not delivered, and others say when they will be", async (t) => {
  const pushq = client(t);
  const name = await queue();
  await pushq.publish(name, "short", {ttlMs: 50});
  await pushq.publish(name, "long", {ttlMs: 60_000});
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const [message] = await taken(pushq, name, 1);
  assert.equal(message.body, "long");
  assert.ok(message.expiresAt.getTime() > Date.now());
});

story("higher priorities come first", async (t) => {
  const pushq = client(t);
  const name = await queue({priorities: 3});
  await pushq.publishMany(name, [{body: "low"}, {body: "high", priority: 2}, {body: "middle", priority: 1}]);
  const seen = await taken(pushq, name, 3);
  assert.deepEqual(seen.map(({body, priority}) => [body, priority]), [["high", 2], ["middle", 1], ["low", 0]]);
  await assert.rejects(pushq.publish(name, "no", {priority: 3}), {code: "invalid-request"});
});

story("a queue by producer takes numbers as they come, and drops what it had before", async (t) => {
  const name = await queue({sequencing: "producer"});
  const pushq = client(t, {producer: "till"});
  await pushq.publishMany(name, [1, 2, 3].map((body) => ({body})));
  assert.deepEqual(pushq.nextNumbers, {[name]: 4});
  const again = client(t, {producer: "till", firstNumber: 3});
  const repeated = await again.publish(name, "three again");
  const next = await again.publish(name, 4);
  assert.deepEqual([repeated.duplicate, next.duplicate], [true, false]);
  const seen = await taken(pushq, name, 4);
  assert.deepEqual(seen.map(({body}) => body), [1, 2, 3, 4]);
  assert.deepEqual(seen.map(({producer, producerSeq}) => [producer, producerSeq]), [1, 2, 3, 4].map((n) => ["till", n]));
});

story("what came too late says whose number it had, and a bare message says nothing", async (t) => {
  const pushq = client(t);
  const [name, plain] = [await queue({sequencing: "producer", sort_window_ms: 0}), await queue()];
  const numbered = (producerSeq) => pushq.publish(name, producerSeq, {producer: "till", producerSeq});
  await numbered(2);
  await taken(pushq, name, 1);
  await numbered(1);
  const [late] = await taken(pushq, `${name}.late`, 1);
  assert.deepEqual([late.body, late.producer, late.producer_seq, late.ordering.late], [1, "till", 1, true]);
  await publishText(plain, '{"messages": [{"body": 1}]}');
  const [bare] = await taken(pushq, plain, 1);
  assert.deepEqual(["producer" in bare, "producer_seq" in bare, bare.producerSeq], [false, false, null]);
});

story("a queue by clock sorts what several clients stamped, and shows the stamps", async (t) => {
  const name = await queue({sequencing: "clock", sort_window_ms: 2_000});
  const at = Date.now();
  const [a, b] = [client(t), client(t)];
  const stamped = (ms) => ({timestamp: new Date(at + ms)});
  await a.publish(name, "third", stamped(2));
  await b.publish(name, "first", stamped(0));
  await a.publish(name, "second", stamped(1));
  const seen = await taken(a, name, 3);
  assert.deepEqual(seen.map(({body}) => body), ["first", "second", "third"]);
  assert.equal(HybridClock.parse(seen[0].ordering.timestamp), at * 1000);
  assert.equal(seen[0].ordering.late, false);
});

story("stamps of our own are in the order of our publishes", async (t) => {
  const name = await queue({sequencing: "clock", sort_window_ms: 1_000});
  const pushq = client(t);
  await pushq.publishMany(name, Array.from({length: 50}, (_, body) => ({body})));
  const seen = await taken(pushq, name, 50);
  assert.deepEqual(seen.map(({body}) => body), Array.from({length: 50}, (_, n) => n));
});

story("a trace goes with its message and with no other", async (t) => {
  const pushq = client(t);
  const name = await queue();
  const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const traces = [{traceparent}, {traceparent}, {traceparent, tracestate: "congo=t61"}, {}];
  await pushq.publishMany(name, traces.map((trace, body) => ({body, ...trace})));
  const seen = await taken(pushq, name, 4);
  const told = ({body, traceparent, tracestate}) => [body, traceparent, tracestate];
  assert.deepEqual(seen.map(told).sort(), traces.map((trace, body) => told({body, ...trace})));
  for (const wrong of [{traceparent: "x"}, {tracestate: "a=b"}, {traceparent, tracestate: "é"}]) {
    await assert.rejects(pushq.publish(name, 1, wrong), {code: "invalid-request"});
  }
});

story("a publish tells the server its time over any transport", async (t) => {
  const headers = [];
  const fetching = (url, request) => {
    if (url.endsWith("/messages")) headers.push(request.headers["Pushq-Timeout-Ms"]);
    return fetch(url, request);
  };
  const pushq = client(t, {fetch: fetching});
  const name = await queue();
  await pushq.publish(name, 1, {timeoutMs: 5_000});
  await pushq.publish(name, 2);
  const told = headers.length ? headers : pushq.published.map((text) => JSON.parse(text).timeout_ms);
  assert.ok(Number(told[0]) > 3_000 && Number(told[0]) <= 5_000, `${told}`);
  assert.equal(told[1], undefined);
  assert.equal((await stats(name)).ready, 2);
});

story("a key makes the same call by another page a duplicate", async (t) => {
  const name = await queue({dedupe: "id"});
  const options = {key: "k", idempotencyKey: 'say "yes" \\'};
  const first = await client(t).publish(name, {a: 1}, options);
  const again = await client(t).publish(name, {a: 1}, options);
  assert.deepEqual(again, {...first, duplicate: true});
  await assert.rejects(client(t).publish(name, {a: 2}, options), {code: "idempotency-mismatch"});
  await assert.rejects(client(t).publish(name, 1, {idempotencyKey: "é"}), {code: "invalid-request"});
  assert.equal((await stats(name)).ready, 1);
});
