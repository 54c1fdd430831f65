/** Subscriptions: handlers and their verdicts, leases, streams and their cursors. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {accepted, aMoment, event, eventually, leased, quickClient, settle, subscribed} from "./fakes.mjs";

test("what resolves is acked and what throws is nacked, each in one frame a turn", async (t) => {
  const handler = async ({body}) => {
    if (body % 2) throw new Error("odd");
  };
  const {pushq, socket} = await subscribed(t, {credit: 4}, handler);
  const problems = [];
  pushq.addEventListener("problem", ({detail}) => problems.push(detail.message.body));
  socket.say({type: "deliver", sub: 1, messages: [0, 1, 2, 3].map((n) => leased(n))});
  await eventually(() => socket.last("nack"));
  assert.deepEqual(socket.frames("ack").map(({receipts}) => receipts), [["t.0", "t.2"]]);
  assert.equal(socket.frames("nack").length, 1);
  const {receipts, queue, sub, reason} = socket.last("nack");
  assert.deepEqual([receipts, queue, sub, reason], [["t.1", "t.3"], "q", 1, "Error: odd"]);
  assert.deepEqual(problems, [1, 3]);
});

test("what a handler threw is the nack's reason, bounded and as text that can be sent", async (t) => {
  const unspeakable = {toString: () => { throw new Error("no"); }};
  const thrown = [new RangeError("\u{1f600}".repeat(300)), "plain", new Error("half \ud83d"), unspeakable];
  const {pushq, socket} = await subscribed(t, {credit: 4}, ({body}) => Promise.reject(thrown[body]));
  pushq.addEventListener("problem", () => {});
  socket.say({type: "deliver", sub: 1, messages: thrown.map((_, n) => leased(n))});
  await eventually(() => socket.frames("nack").length === 4);
  const reasons = socket.frames("nack").map(({reason}) => reason);
  assert.equal(reasons[0], "RangeError: " + "\u{1f600}".repeat(244));
  assert.deepEqual(reasons.slice(1), ["plain", "Error: half \ufffd", "its message is not available"]);
});

test("a message whose handler threw waits longer with each attempt, unless the queue has a back-off", async (t) => {
  const fails = () => Promise.reject(new Error("no"));
  for (const {ok, limits, windows} of [
    {ok: {}, limits: {}, windows: [[500, 1_000], [1_000, 2_000], [30_000, 60_000]]},
    {ok: {retry_backoff_ms: 200}, limits: {}, windows: null},
    {ok: {}, limits: {retryBaseMs: 0}, windows: null},
  ]) {
    const {pushq, socket} = await subscribed(t, {credit: 4}, fails, {ok, limits});
    pushq.addEventListener("problem", () => {});
    socket.say({type: "deliver", sub: 1, messages: [1, 2, 9].map((n) => leased(n, {attempt: n}))});
    await eventually(() => socket.frames("nack").length === (windows?.length ?? 1));
    const delays = socket.frames("nack").map(({delay_ms}) => delay_ms);
    if (windows) delays.forEach((ms, n) => assert.ok(ms >= windows[n][0] && ms <= windows[n][1], `${delays}`));
    else assert.deepEqual(delays, [undefined]);
  }
});

test("messages with receipts are handled side by side, those without one after the other", async (t) => {
  let [running, ended] = [0, 0];
  const most = {};
  const handler = async ({receipt}) => {
    running += 1;
    most[Boolean(receipt)] = Math.max(most[Boolean(receipt)] ?? 0, running);
    await new Promise((resolve) => setTimeout(resolve, 10));
    running -= 1;
    ended += 1;
  };
  const {socket} = await subscribed(t, {credit: 10}, handler);
  socket.say({type: "deliver", sub: 1, messages: [1, 2, 3].map((n) => leased(n))});
  await eventually(() => ended === 3);
  socket.say({type: "deliver", sub: 1, cursor: "c3", messages: [1, 2, 3].map((n) => leased(n, {receipt: null}))});
  await eventually(() => ended === 6);
  assert.deepEqual(most, {true: 3, false: 1});
});

test("a lease is extended at half its time while the handler runs, and no longer than asked", async (t) => {
  let finish;
  const handler = () => new Promise((resolve) => (finish = resolve));
  const options = {credit: 1, visibility_timeout_ms: 200, maxHandlerMs: 260};
  const {socket} = await subscribed(t, options, handler);
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  await new Promise((resolve) => setTimeout(resolve, 90));
  assert.equal(socket.frames("extend").length, 0);
  const extended = await eventually(() => socket.last("extend"));
  assert.deepEqual([extended.receipts, extended.visibility_timeout_ms], [["t.1"], 200]);
  settle(socket, extended);
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(socket.frames("extend").length, 2, "at 100 and 200 ms, not after 260");
  finish();
});

test("after a cut that ended the session, what runs is extended at once, and left to its verdict where that fails", async (t) => {
  let finish;
  const handler = () => new Promise((resolve) => (finish = resolve));
  const {pushq, sockets} = quickClient(t);
  let lost = 0;
  pushq.addEventListener("lost", () => (lost += 1));
  const first = await accepted(sockets);
  pushq.subscribe("q", {credit: 1, visibility_timeout_ms: 60_000}, handler);
  const asked = await eventually(() => first.last("subscribe"));
  first.say({type: "ok", id: asked.id, sub: 1, resume: "complete"});
  first.say({type: "deliver", sub: 1, messages: [leased(1)]});
  await eventually(() => finish);
  first.end(1006);
  const second = await accepted(sockets, 1);
  const extended = await eventually(() => second.last("extend"));
  assert.deepEqual(extended.receipts, ["t.1"]);
  settle(second, extended, {ok: false, error: "stale-receipt"});
  finish();
  const acked = await eventually(() => second.last("ack"));
  assert.deepEqual([acked.receipts, lost], [["t.1"], 0]);
});

test("the server's own visibility time-out is used where the caller gave none", async (t) => {
  const {subscription} = await subscribed(t, {}, () => {}, {ok: {visibility_timeout_ms: 5_000}});
  assert.equal(subscription.visibilityMs, 5_000);
});

test("a lost lease aborts the message's signal, marks it, and is told once", async (t) => {
  const seen = [];
  let finish;
  const handler = (message) => {
    seen.push(message);
    return new Promise((resolve) => (finish = resolve));
  };
  const {pushq, socket} = await subscribed(t, {credit: 1}, handler);
  let told = 0;
  pushq.addEventListener("lost", () => (told += 1));
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  socket.say({type: "lost", sub: 1, receipts: ["t.1", "t.99"]});
  const [message] = seen;
  assert.deepEqual([message.lost, message.signal.aborted, told], [true, true, 1]);
  finish();
  settle(socket, await eventually(() => socket.last("ack")), {ok: false}); // tried: nobody else may hold it
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(told, 1);
});

test("an ack that came too late is told as a lost lease", async (t) => {
  const {pushq, socket} = await subscribed(t, {credit: 1}, () => {});
  const lost = event(pushq, "lost");
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  settle(socket, await eventually(() => socket.last("ack")), {ok: false});
  const {queue, messages} = await lost;
  assert.deepEqual([queue, messages[0].id, messages[0].lost], ["q", "m1", true]);
});

test("acks that a cut swallowed are sent again first, before the queue is subscribed to anew", async (t) => {
  const {socket, sockets} = await subscribed(t, {credit: 1}, () => {});
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  await eventually(() => socket.last("ack"));
  socket.end(1006);
  const again = await eventually(() => sockets[1]);
  again.accept("s1");
  await eventually(() => again.last("subscribe"));
  assert.deepEqual(again.sent.map(({type}) => type), ["connect", "ack", "subscribe"]);
  assert.deepEqual(again.sent[0].resume, {session: "s1"});
  assert.deepEqual(again.sent[1].receipts, ["t.1"]);
  assert.equal("sub" in again.sent[1], false, "the old number means nothing on the new connection");
});

test("a session that goes on says at once what it has of a group with offsets; a new one, what runs", async (t) => {
  for (const [mode, session, extended] of [["offsets", "s1", 1], ["offsets", "s9", 1], ["leases", "s1", 0], ["leases", "s9", 1]]) {
    const handler = () => new Promise(() => {});
    const {socket, sockets} = await subscribed(t, {group: "g", credit: 2}, handler, {ok: {mode}});
    socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
    socket.end(1006);
    const again = await eventually(() => sockets[1]);
    again.accept(session);
    const frame = await eventually(() => again.last("subscribe"));
    again.say({type: "ok", id: frame.id, sub: 1, resume: "complete", mode});
    await aMoment(100);
    assert.deepEqual(again.frames("extend").map(({receipts}) => receipts), Array(extended).fill(["t.1"]));
  }
});

test("a stream goes on at its last cursor", async (t) => {
  const {subscription, socket, sockets, frame} = await subscribed(t, {from: "earliest"}, () => {});
  assert.equal(frame.from, "earliest");
  socket.say([
    {type: "deliver", sub: 1, cursor: "c1", messages: [leased(1, {receipt: null})]},
    {type: "deliver", sub: 1, cursor: "c2", messages: [leased(2, {receipt: null})]},
  ]);
  assert.equal(subscription.cursor, "c2");
  socket.end(4000);
  const again = await eventually(() => sockets[1]);
  again.accept("s2");
  assert.deepEqual((await eventually(() => again.last("subscribe"))).from, {cursor: "c2"});
});

test("a gap and a reset are told, and a reset moves the cursor", async (t) => {
  const {pushq, subscription, socket} = await subscribed(t, {from: "latest"}, () => {});
  const told = [event(pushq, "gap"), event(pushq, "reset")];
  socket.say({type: "gap", sub: 1, from: 3, to: 9});
  socket.say({type: "reset", sub: 1, cursor: "c9"});
  assert.deepEqual(await Promise.all(told), [{queue: "q", from: 3, to: 9}, {queue: "q", cursor: "c9"}]);
  assert.equal(subscription.cursor, "c9");
});

test("a gap in one of several partitions names it", async (t) => {
  const {pushq, socket} = await subscribed(t, {from: "latest"}, () => {});
  const told = event(pushq, "gap");
  socket.say({type: "gap", sub: 1, from: 3, to: 9, partition: 2});
  assert.deepEqual(await told, {queue: "q", from: 3, to: 9, partition: 2});
});

test("a stream that outruns its handler is left, and taken up again where it stopped", async (t) => {
  const handled = [];
  const waiting = [];
  const handler = ({body}) => new Promise((resolve) => waiting.push(() => resolve(handled.push(body))));
  const {socket} = await subscribed(t, {from: "earliest"}, handler, {limits: {streamBacklogMessages: 3}});
  const burst = (numbers, cursor) => {
    return {type: "deliver", sub: 1, cursor, messages: numbers.map((n) => leased(n, {receipt: null}))};
  };
  socket.say(burst([1, 2, 3], "c3"));
  socket.say(burst([4, 5], "c5")); // would be five: left unread
  await eventually(() => socket.last("unsubscribe"));
  while (handled.length < 3) (await eventually(() => waiting.shift()))();
  const again = await eventually(() => socket.frames("subscribe")[1]);
  assert.deepEqual(again.from, {cursor: "c3"});
  socket.say({type: "ok", id: again.id, sub: 2, resume: "complete"});
  socket.say({...burst([4, 5], "c5"), sub: 2});
  while (handled.length < 5) (await eventually(() => waiting.shift()))();
  assert.deepEqual(handled, [1, 2, 3, 4, 5]);
});

test("a refused subscription ends, and says why", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const ended = event(pushq, "ended");
  const subscription = pushq.subscribe("nothing", {}, () => {});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("subscribe"));
  socket.say({type: "error", id: frame.id, problem: {code: "queue-not-found", status: 404, detail: "no queue"}});
  await assert.rejects(subscription.ready, {code: "queue-not-found"});
  assert.equal((await ended).error.code, "queue-not-found");
  assert.equal((await subscription.closed).status, 404);
});

test("closing lets the running handler finish and acks it before it leaves", async (t) => {
  let finish;
  const {subscription, socket} = await subscribed(t, {credit: 1}, () => new Promise((resolve) => (finish = resolve)));
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  const closed = subscription.close();
  assert.equal(socket.last("unsubscribe"), undefined);
  finish();
  settle(socket, await eventually(() => socket.last("ack")));
  const leaving = await eventually(() => socket.last("unsubscribe"));
  socket.say({type: "ok", id: leaving.id});
  await closed;
  assert.deepEqual(socket.sent.slice(-2).map(({type}) => type), ["ack", "unsubscribe"]);
});

test("base64 bodies arrive as bytes", async (t) => {
  const seen = [];
  const {socket} = await subscribed(t, {}, ({body}) => seen.push(body));
  const {body, ...fields} = leased(1, {body_base64: "AP8H"});
  socket.say({type: "deliver", sub: 1, messages: [fields]});
  assert.deepEqual([...seen[0]], [0, 255, 7]);
});

test("a message that cannot be decoded goes back with the reason, and its neighbours are handled", async (t) => {
  const got = [];
  const {pushq, socket} = await subscribed(t, {credit: 4}, ({body}) => void got.push(body));
  const problem = event(pushq, "problem");
  const broken = {...leased(2), body: undefined, body_base64: "no base64!"};
  socket.say({type: "deliver", sub: 1, messages: [leased(1), broken, leased(3)]});
  const {receipts, reason} = await eventually(() => socket.last("nack"));
  assert.deepEqual(receipts, ["t.2"]);
  assert.match(reason, /^the consumer cannot decode it: /);
  const {error, message} = await problem;
  assert.deepEqual([error.code, message.id], ["undecodable", broken.id]);
  assert.deepEqual(got, [1, 3]);
  assert.deepEqual(socket.last("ack").receipts, ["t.1", "t.3"]);
});

test("an option of a subscription that nobody knows is refused by its name, over every transport", (t) => {
  for (const transports of [["ws"], ["sse"], ["poll"]]) {
    const {pushq} = quickClient(t, {transports, fetch: async () => Response.json({items: []})});
    const refused = (options, message) => assert.throws(() => pushq.subscribe("q", options, () => {}), {name: "TypeError", message});
    refused({prefetch: 5}, /^subscribe has no option "prefetch"$/);
    refused({visibilityTimeout: 5}, /no option "visibilityTimeout"; did you mean "visibilityTimeoutMs"\?/);
    refused({max_handler_ms: 5}, /did you mean "maxHandlerMs"\?/);
    assert.throws(() => pushq.subscribe("q", {ack: "maybe"}, () => {}), {code: "invalid-request", message: /"manual" or "auto", not maybe/});
    pushq.subscribe("q", {credit: 10_000, ack: "auto", visibility_timeout_ms: 5_000, visibilityTimeoutMs: 5_000}, () => {});
  }
});

test("a credit or a name that cannot be is an error at once, over every transport", (t) => {
  for (const transports of [["ws"], ["poll"]]) {
    const {pushq} = quickClient(t, {transports, fetch: async () => Response.json({items: []})});
    for (const credit of [0, -1, 1.5, NaN, 10_001]) {
      assert.throws(() => pushq.subscribe("q", {credit}, () => {}), {code: "invalid-request", message: /credit/});
    }
    for (const queue of ["\u{1f600}".slice(0, 1), undefined, "", ".", "..", "a/../b", "a b", ".dead", "a\n", "a".repeat(129)]) {
      assert.throws(() => pushq.subscribe(queue, {}, () => {}), {code: "invalid-request", message: /name|surrogate/});
    }
    for (const queue of ["a".repeat(128), "A_b-c.d..e", "7"]) pushq.subscribe(queue, {}, () => {});
    assert.throws(() => pushq.subscribe("q", {group: "\u{1f600}".slice(0, 1)}, () => {}), {code: "invalid-request"});
  }
});
