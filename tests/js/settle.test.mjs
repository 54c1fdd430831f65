/** Verdicts that a handler gives itself: ack with a publish, nack with a delay, extend, reply. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {LeaseLost} from "../../push/js/pushq.js";
import {aMoment, accepted, confirm, event, eventually, leased, refuse, settle, subscribed} from "./fakes.mjs";

const deliver = (socket, ...messages) => socket.say({type: "deliver", sub: 1, messages});

test("a handler that acked is not acked again, and its ack resolves when the server has confirmed it", async (t) => {
  const told = [];
  const handler = async (message) => {
    await message.ack();
    told.push("acked");
  };
  const {socket} = await subscribed(t, {credit: 1}, handler);
  deliver(socket, leased(1));
  const frame = await eventually(() => socket.last("ack"));
  await aMoment();
  assert.deepEqual(told, []);
  settle(socket, frame);
  await eventually(() => told.length);
  await aMoment();
  assert.equal(socket.frames("ack").length, 1);
});

test("a nack names its delay and its reason; those that say the same share a frame", async (t) => {
  const handler = (message) => void message.nack(message.body < 3 ? {delayMs: 500, reason: "no stock"} : {});
  const {socket} = await subscribed(t, {credit: 4}, handler);
  deliver(socket, leased(1), leased(2), leased(3));
  await eventually(() => socket.frames("nack").length === 2);
  const [late, now] = socket.frames("nack");
  assert.deepEqual([late.receipts, late.delay_ms, late.reason], [["t.1", "t.2"], 500, "no stock"]);
  assert.deepEqual([now.receipts, "delay_ms" in now, "reason" in now], [["t.3"], false, false]);
  assert.equal(socket.last("ack"), undefined);
});

test("the first verdict counts: the same again is the same, another one is refused", async (t) => {
  const seen = [];
  const {socket} = await subscribed(t, {credit: 1}, (message) => void seen.push(message, message.ack()));
  deliver(socket, leased(1));
  const [message, first] = seen;
  assert.equal(message.ack(), first);
  await assert.rejects(message.nack(), {code: "already-settled"});
  settle(socket, await eventually(() => socket.last("ack")));
  await first;
});

test("an ack that came too late rejects with LeaseLost, and is told as a lost lease", async (t) => {
  const errors = [];
  const {pushq, socket} = await subscribed(t, {credit: 1}, (message) => message.ack().catch((e) => errors.push(e)));
  const lost = event(pushq, "lost");
  deliver(socket, leased(1));
  settle(socket, await eventually(() => socket.last("ack")), {ok: false, error: "stale-receipt"});
  assert.equal((await lost).messages[0].lost, true);
  await eventually(() => errors.length);
  assert.ok(errors[0] instanceof LeaseLost);
  assert.deepEqual([errors[0].code, errors[0].name], ["stale-receipt", "LeaseLost"]);
  assert.match(errors[0].message, /queue "q": ack of message m1, attempt 1/);
});

test("what is published with an ack travels in its frame, in the wire's words, with numbers and ids", async (t) => {
  const body = {total: 7};
  const publish = [{queue: "bills", messages: [{body, key: "k", delayMs: 5}, {body: new Uint8Array([7])}]}];
  const {pushq, socket} = await subscribed(t, {credit: 2}, (message) => {
    if (message.body === 1) message.ack({publish});
    body.total = "changed";
  });
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("ack").length === 2);
  const [step, plain] = socket.frames("ack");
  assert.deepEqual([step.receipts, plain.receipts, "publish" in plain], [["t.1"], ["t.2"], false]);
  const [{queue, messages}] = step.publish;
  assert.equal(queue, "bills");
  const {id, timestamp, ...first} = messages[0];
  assert.match(id, /^[0-9a-f]{32}$/);
  assert.deepEqual(first, {key: "k", delay_ms: 5, body: {total: 7}, producer: pushq.producer, producer_seq: 1});
  assert.deepEqual([messages[1].body_base64, messages[1].producer_seq], ["Bw==", 2]);
});

test("an ack with a publish that a cut swallowed is told again, the same", async (t) => {
  const handler = (message) => message.ack({publish: [{queue: "bills", messages: [{body: 1}]}]});
  const {socket, sockets} = await subscribed(t, {credit: 1}, handler);
  deliver(socket, leased(1));
  const frame = await eventually(() => socket.last("ack"));
  socket.end(1006);
  const again = await accepted(sockets, 1, "s1");
  const repeated = await eventually(() => again.last("ack"));
  assert.deepEqual([repeated.receipts, repeated.publish], [frame.receipts, frame.publish]);
  settle(again, repeated);
});

test("a step that was refused leaves the message open: the handler may do something else, or throw", async (t) => {
  const codes = [];
  const handler = async (message) => {
    await message.ack({publish: [{queue: "elsewhere", messages: [{body: 1}]}]}).catch(({code}) => codes.push(code));
    if (message.body === 1) await message.ack();
    else throw new Error("give up");
  };
  const {pushq, socket} = await subscribed(t, {credit: 2}, handler);
  pushq.addEventListener("problem", () => {});
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("ack").length === 2);
  const [first, second] = socket.frames("ack");
  refuse(socket, first, {detail: "queue elsewhere is not colocated with q"});
  settle(socket, second, {ok: false, error: {code: "queue-full", status: 507, detail: "elsewhere is full"}});
  await eventually(() => socket.last("nack"));
  assert.deepEqual(codes, ["invalid-request", "queue-full"]);
  assert.deepEqual([socket.last("nack").receipts, socket.last("ack").receipts], [["t.2"], ["t.1"]]);
});

test("messages without a receipt have nothing to settle, and no ack to carry a publish", async (t) => {
  const outcomes = [];
  const handler = async (message) => {
    await Promise.all([message.ack(), message.nack(), message.extend(1000)]);
    outcomes.push(await message.ack({publish: [{queue: "x", messages: [{body: 1}]}]}).catch(({code}) => code));
  };
  const {socket} = await subscribed(t, {ack: "auto"}, handler);
  deliver(socket, leased(1, {receipt: null}));
  await eventually(() => outcomes.length);
  assert.deepEqual(outcomes, ["invalid-request"]);
  assert.deepEqual(socket.sent.map(({type}) => type), ["connect", "subscribe"]);
});

test("extend asks for a lease of its own, which ours then does not shorten", async (t) => {
  let finish;
  const handler = async (message) => {
    await message.extend(1_000);
    await new Promise((resolve) => (finish = resolve));
  };
  const {socket} = await subscribed(t, {credit: 1, visibilityTimeoutMs: 100}, handler);
  deliver(socket, leased(1));
  const frame = await eventually(() => socket.last("extend"));
  assert.deepEqual([frame.receipts, frame.visibility_timeout_ms], [["t.1"], 1_000]);
  settle(socket, frame);
  await aMoment(300);
  assert.equal(socket.frames("extend").length, 1, "half a lease of 100 ms has passed, and is covered");
  finish();
});

test("leases are extended in time though the computer's clock is set back", async (t) => {
  let finish;
  const handler = () => new Promise((resolve) => (finish = resolve));
  const {socket} = await subscribed(t, {credit: 1, visibilityTimeoutMs: 100}, handler);
  deliver(socket, leased(1));
  await eventually(() => finish);
  const now = Date.now;
  t.mock.method(Date, "now", () => now() - 3_600_000);
  settle(socket, await eventually(() => socket.last("extend")));
  finish();
});

test("an extension that came too late rejects, and the lease is told as lost", async (t) => {
  const errors = [];
  const handler = async (message) => {
    const error = await message.extend(1_000).catch((error) => error);
    errors.push([error.code, message.lost, message.signal.aborted]);
  };
  const {socket} = await subscribed(t, {credit: 1}, handler);
  deliver(socket, leased(1));
  settle(socket, await eventually(() => socket.last("extend")), {ok: false, error: "stale-receipt"});
  await eventually(() => errors.length);
  assert.deepEqual(errors, [["stale-receipt", true, true]]);
});

test("fields can be read in either spelling, and times as dates", async (t) => {
  const seen = [];
  const {socket} = await subscribed(t, {}, (message) => void seen.push(message));
  const dead = {from: "q", reason: "max_attempts", at: "2026-01-01T00:00:00.000Z", attempts: 10, history: []};
  const fields = {reply_to: "r", correlation_id: "c", dead_letter: dead, expires_at: "2026-01-01T00:01:00.000Z"};
  const ordering = {timestamp: "2026-01-01T00:00:00.000Z", late: true};
  deliver(socket, leased(1, {...fields, priority: 3, key: "k", ordering, producer: "p", producer_seq: 7}), leased(2));
  await eventually(() => seen.length === 2);
  const [message, plain] = seen;
  assert.deepEqual([message.replyTo, message.correlationId, message.deadLetter], ["r", "c", dead]);
  assert.equal(message.contentType, "application/json");
  assert.equal(message.expiresAt.getTime(), Date.UTC(2026, 0, 1, 0, 1));
  assert.equal(message.publishedAt.getTime(), Date.UTC(2026, 0, 1));
  assert.deepEqual([message.reply_to, message.expires_at], ["r", fields.expires_at]);
  assert.deepEqual([message.priority, message.key, message.ordering.late, message.queue], [3, "k", true, "q"]);
  assert.deepEqual([message.producer, message.producer_seq, message.producerSeq], ["p", 7, 7]);
  assert.deepEqual([plain.producer, plain.producer_seq, plain.producerSeq], [undefined, undefined, null]);
  assert.deepEqual([plain.replyTo, plain.correlationId, plain.deadLetter, plain.expiresAt], [null, null, null, null]);
});

test("a field of the server's that is named like one of ours does no harm", async (t) => {
  const seen = [];
  const {socket} = await subscribed(t, {}, (message) => void seen.push(message));
  deliver(socket, leased(1, {queue: "another", ack: 1, novelty: 2}));
  await eventually(() => seen.length);
  assert.deepEqual([seen[0].queue, typeof seen[0].ack, seen[0].novelty], ["q", "function", 2]);
});

test("a reply goes to the queue that asked, with what it wants to know it by", async (t) => {
  const replies = [];
  const handler = async (message) => {
    replies.push(await message.reply({price: 7}, {headers: {h: "1"}}).catch(({code}) => code));
  };
  const {socket} = await subscribed(t, {credit: 4}, handler);
  deliver(socket, leased(1, {reply_to: "reply.x", correlation_id: "c-1"}), leased(2, {reply_to: "reply.x"}), leased(3));
  const frame = await eventually(() => socket.last("publish"));
  assert.equal(frame.queue, "reply.x");
  assert.deepEqual(frame.messages.map(({body, correlation_id, headers}) => [body, correlation_id, headers]), [
    [{price: 7}, "c-1", {h: "1"}],
    [{price: 7}, "m2", {h: "1"}],
  ]);
  confirm(socket, frame);
  await eventually(() => replies.length === 3);
  assert.equal(replies[0], "no-reply-to");
  assert.equal(replies[1].duplicate, false);
});

test("a handler that runs while the client closes can still publish and reply", async (t) => {
  let finish;
  const replies = [];
  const handler = async (message) => {
    await new Promise((resolve) => (finish = resolve));
    replies.push(await message.reply("done"));
  };
  const {pushq, socket} = await subscribed(t, {credit: 1}, handler, {limits: {closeMs: 2_000}});
  deliver(socket, leased(1, {reply_to: "r"}));
  await eventually(() => finish);
  const closed = pushq.close();
  finish();
  confirm(socket, await eventually(() => socket.last("publish")));
  settle(socket, await eventually(() => socket.last("ack")));
  const leaving = await eventually(() => socket.last("unsubscribe"));
  socket.say({type: "ok", id: leaving.id});
  await closed;
  assert.equal(replies.length, 1);
});

test("a message that is released was no attempt", async (t) => {
  const {socket} = await subscribed(t, {credit: 2}, (message) => message.release(message.body === 2 ? {delayMs: 300} : {}));
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("nack")[1]);
  const told = socket.frames("nack").map(({receipts, tried, delay_ms}) => [receipts, tried, delay_ms]);
  assert.deepEqual(told, [[["t.1"], false, undefined], [["t.2"], false, 300]]);
});

test("what a handler has in work is told, and what it settled at once is not", async (t) => {
  const handler = ({body}) => (body === 1 ? undefined : new Promise(() => {}));
  const {socket} = await subscribed(t, {credit: 3}, handler);
  assert.equal(socket.last("subscribe").attempts, "begun");
  deliver(socket, leased(1), leased(2), leased(3));
  const {sub, receipts} = await eventually(() => socket.last("begin"));
  assert.deepEqual([sub, receipts], [1, ["t.2", "t.3"]]);
  assert.equal(socket.frames("begin").length, 1);
});

test("what waits in a line has not begun", async (t) => {
  const {socket} = await subscribed(t, {credit: 3, inOrder: true}, () => new Promise(() => {}));
  deliver(socket, leased(1), leased(2));
  assert.deepEqual((await eventually(() => socket.last("begin"))).receipts, ["t.1"]);
});

test("a verdict that cannot be told is refused alone, and another one may follow", async (t) => {
  const circle = {};
  circle.self = circle;
  const told = [];
  const handler = async (message) => {
    if (message.body > 1) return;
    for (const wrong of [{reason: "\u{1f600}".slice(0, 1)}, {delayMs: NaN}, {delayMs: 10n}, {reason: circle}]) {
      await message.nack(wrong).catch((error) => told.push(error.code ?? error.name));
    }
    await message.release({delayMs: Infinity}).catch((error) => told.push(error.code));
    await message.ack({publish: [{queue: "\u{1f600}".slice(1), messages: [{body: 1}]}]}).catch((error) => told.push(error.code));
  };
  const {socket} = await subscribed(t, {credit: 4}, handler);
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("ack").flatMap(({receipts}) => receipts).length === 2);
  const bad = "invalid-request";
  assert.deepEqual(told, [bad, bad, "TypeError", "TypeError", bad, bad]);
  assert.equal(socket.last("nack"), undefined);
});

test("who works on a message is told when the client ends", async (t) => {
  for (const end of [(pushq) => pushq.close(), (_, socket) => socket.end(4501, "revoked")]) {
    const seen = [];
    const {pushq, socket} = await subscribed(t, {credit: 2}, (message) => {
      seen.push(message);
      return message.body === 1 ? message.ack() : new Promise(() => {});
    });
    deliver(socket, leased(1), leased(2));
    settle(socket, await eventually(() => socket.last("ack")));
    const lost = event(pushq, "lost");
    end(pushq, socket);
    assert.deepEqual((await lost).messages.map(({id}) => id), ["m2"]);
    assert.deepEqual(seen.map((message) => [message.lost, message.signal.aborted]), [[false, false], [true, true]]);
  }
});
