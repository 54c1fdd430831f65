/** Requests and replies: the queue of replies, who gets which, and what is said when none comes. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {NoReplyQueue, PushqError, RequestTimeout} from "../../push/js/pushq.js";
import {accepted, aMoment, confirm, eventually, leased, quickClient, refuse, settle} from "./fakes.mjs";

const QUESTION = {item: 7};

/** A client whose HTTP calls are recorded, and answered by `answer`. */
function asking(t, {answer = () => Response.json({}, {status: 201}), ...options} = {}) {
  const calls = [];
  const fetch = async (url, {method, body}) => {
    calls.push({method, path: new URL(url).pathname, body: body && JSON.parse(body)});
    return answer(calls.length);
  };
  return {...quickClient(t, {token: "k", fetch, ...options}), calls};
}

async function inbox(socket, at = 0) {
  const frame = await eventually(() => socket.frames("subscribe")[at], "the subscription of the reply queue");
  socket.say({type: "ok", id: frame.id, sub: at + 1, resume: "complete"});
  return frame;
}

async function asked(socket, at = 0) {
  const frame = await eventually(() => socket.frames("publish")[at], "the request");
  confirm(socket, frame);
  return frame.messages[0];
}

const reply = (socket, correlation_id, body, sub = 1) =>
  socket.say({type: "deliver", sub, messages: [leased(1, {receipt: null, correlation_id, body})]});

test("the first request makes a queue for replies, listens, then asks; the reply resolves it", async (t) => {
  const {pushq, sockets, calls} = asking(t);
  const promise = pushq.request("prices", QUESTION, {timeoutMs: 5_000, key: "k"});
  const socket = await accepted(sockets);
  const subscribe = await inbox(socket);
  const own = `reply.${pushq.producer}`;
  assert.deepEqual(calls.map(({method, path}) => [method, path]), [["PUT", `/v1/queues/${own}`]]);
  const {kind, delivery, message_ttl_ms} = calls[0].body;
  assert.deepEqual([kind, delivery, message_ttl_ms], ["work", "at_most_once", 60_000]);
  assert.deepEqual([subscribe.queue, subscribe.ack], [own, "auto"]);
  const question = await asked(socket);
  assert.deepEqual([question.body, question.key, question.reply_to], [QUESTION, "k", own]);
  assert.ok(question.ttl_ms > 4_000 && question.ttl_ms <= 5_000, "nobody works on it when nobody waits");
  reply(socket, question.correlation_id, {price: 3});
  const {body, queue, receipt} = await promise;
  assert.deepEqual([body, queue, receipt], [{price: 3}, own, null]);
});

test("requests share one queue of replies, and each gets its own reply", async (t) => {
  const {pushq, sockets, calls} = asking(t);
  const promises = [1, 2, 3].map((n) => pushq.request("prices", n));
  const socket = await accepted(sockets);
  await inbox(socket);
  const frame = await eventually(() => socket.last("publish"));
  confirm(socket, frame);
  for (const {correlation_id, body} of [...frame.messages].reverse()) {
    reply(socket, correlation_id, body * 10);
  }
  assert.deepEqual((await Promise.all(promises)).map(({body}) => body), [10, 20, 30]);
  assert.deepEqual([calls.length, socket.frames("subscribe").length], [1, 1]);
});

test("a request that nobody answers in time rejects, and says what became of it", async (t) => {
  const {pushq, sockets} = asking(t);
  const stored = pushq.request("prices", 1, {timeoutMs: 400});
  const socket = await accepted(sockets);
  await inbox(socket);
  await asked(socket);
  await assert.rejects(stored, (error) => {
    assert.ok(error instanceof RequestTimeout && error instanceof PushqError);
    assert.deepEqual([error.code, error.queue, error.timeoutMs], ["request-timeout", "prices", 400]);
    assert.equal(error.isStored, true);
    assert.match(error.message, /queue "prices": no reply within 400 ms; the request was stored/);
    return true;
  });
  await assert.rejects(pushq.request("prices", 2, {timeoutMs: 40}), {isStored: false});
});

test("a request says itself that it was not confirmed, also where its publish has the shorter time by a hair", async (t) => {
  const {pushq, sockets} = asking(t);
  const asks = pushq.request("prices", 1, {timeoutMs: 150});
  const now = Date.now;
  t.mock.method(Date, "now", () => now() + 50);
  await inbox(await accepted(sockets));
  await assert.rejects(asks, (error) => error instanceof RequestTimeout && error.isStored === false);
});

test("a late reply and a second one are dropped and counted; replies to others are not ours to count", async (t) => {
  const {pushq, sockets} = asking(t);
  const promise = pushq.request("prices", 1, {timeoutMs: 60});
  const socket = await accepted(sockets);
  await inbox(socket);
  const {correlation_id} = await asked(socket);
  await assert.rejects(promise, RequestTimeout);
  reply(socket, correlation_id, "late");
  reply(socket, "somebody-elses", 1);
  await eventually(() => pushq.lateReplies === 1);
  const second = pushq.request("prices", 2);
  const again = await asked(socket, 1);
  reply(socket, again.correlation_id, "first");
  reply(socket, again.correlation_id, "second");
  assert.equal((await second).body, "first");
  await eventually(() => pushq.lateReplies === 2);
});

test("a named queue of replies is used as it is, of the client or of one request", async (t) => {
  const {pushq, sockets, calls} = asking(t, {replyQueue: "replies.ann"});
  const promises = [pushq.request("prices", 1), pushq.request("prices", 2, {replyQueue: "replies.bob"})];
  const socket = await accepted(sockets);
  const queues = [(await inbox(socket)).queue, (await inbox(socket, 1)).queue];
  assert.deepEqual([queues.sort(), calls], [["replies.ann", "replies.bob"], []]);
  await eventually(() => socket.frames("publish").flatMap(({messages}) => messages).length === 2);
  for (const frame of socket.frames("publish")) {
    confirm(socket, frame);
    for (const {correlation_id, reply_to} of frame.messages) {
      const sub = socket.frames("subscribe").findIndex(({queue}) => queue === reply_to) + 1;
      reply(socket, correlation_id, reply_to, sub);
    }
  }
  assert.deepEqual((await Promise.all(promises)).map(({body}) => body), ["replies.ann", "replies.bob"]);
});

test("a key that may not make the queue is told what it lacks, and the next request tries again", async (t) => {
  const forbidden = () => Response.json({code: "forbidden", status: 403, detail: "no scope"}, {status: 403});
  const {pushq, sockets, calls} = asking(t, {answer: forbidden});
  await accepted(sockets);
  for (const count of [1, 2]) {
    await assert.rejects(pushq.request("prices", 1), (error) => {
      assert.ok(error instanceof NoReplyQueue);
      assert.deepEqual([error.code, error.status, error.cause.code], ["no-reply-queue", 403, "forbidden"]);
      assert.match(error.message, /manage:reply\.\*.*consume:reply\.\*.*replyQueue/);
      return true;
    });
    assert.equal(calls.length, count);
  }
});

test("a queue of replies that may not be read says what is needed", async (t) => {
  const {pushq, sockets} = asking(t, {replyQueue: "replies.ann"});
  pushq.addEventListener("problem", () => {});
  const promise = pushq.request("prices", 1);
  const socket = await accepted(sockets);
  const frame = await eventually(() => socket.last("subscribe"));
  refuse(socket, frame, {code: "queue-not-found", status: 404, detail: "no such queue"});
  await assert.rejects(promise, {code: "no-reply-queue", message: /replies\.ann.*consume:replies\.ann/});
});

test("making the queue waits out a server that is away, and takes one that is there already", async (t) => {
  const answers = [
    () => Response.json({code: "unavailable", status: 503, detail: "later"}, {status: 503}),
    () => Promise.reject(new TypeError("refused")),
    () => Response.json({code: "conflict", status: 409, detail: "other settings"}, {status: 409}),
  ];
  const {pushq, sockets, calls} = asking(t, {answer: (count) => answers[count - 1]()});
  const promise = pushq.request("prices", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  reply(socket, (await asked(socket)).correlation_id, "yes");
  assert.equal((await promise).body, "yes");
  assert.equal(calls.length, 3);
});

test("a request to a stream goes without a time to live", async (t) => {
  const {pushq, sockets} = asking(t);
  const promise = pushq.request("news", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  const errors = [{pointer: "/messages/0/ttl_ms", detail: "a stream"}];
  refuse(socket, await eventually(() => socket.last("publish")), {errors});
  const again = await asked(socket, 1);
  assert.equal("ttl_ms" in again, false);
  reply(socket, again.correlation_id, "yes");
  await promise;
});

test("a request that is refused rejects with the refusal", async (t) => {
  const {pushq, sockets} = asking(t);
  const promise = pushq.request("nowhere", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  refuse(socket, await eventually(() => socket.last("publish")), {code: "queue-not-found", status: 404});
  await assert.rejects(promise, {code: "queue-not-found"});
});

test("when the queue of replies goes away its requests are told, and the next one opens it anew", async (t) => {
  const {pushq, sockets, calls} = asking(t);
  const promise = pushq.request("prices", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  await asked(socket);
  const problem = {code: "queue-not-found", status: 404, detail: "it was deleted"};
  socket.say({type: "ended", sub: 1, problem});
  await assert.rejects(promise, {code: "no-reply-queue"});
  const next = pushq.request("prices", 2);
  await inbox(socket, 1);
  reply(socket, (await asked(socket, 1)).correlation_id, "yes", 2);
  await next;
  assert.equal(calls.length, 2);
});

test("a reply that was under way over a cut still comes", async (t) => {
  const {pushq, sockets} = asking(t);
  const promise = pushq.request("prices", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  const {correlation_id} = await asked(socket);
  socket.end(1006);
  const again = await accepted(sockets, 1);
  await inbox(again);
  reply(again, correlation_id, "yes");
  assert.equal((await promise).body, "yes");
});

test("requests that wait are bounded, and end with the client", async (t) => {
  const {pushq, sockets} = asking(t, {limits: {requestsWaiting: 1}});
  const waiting = pushq.request("prices", 1);
  waiting.catch(() => {});
  await assert.rejects(pushq.request("prices", 2), {code: "buffer-full"});
  await accepted(sockets);
  await pushq.close();
  await assert.rejects(waiting, {code: "closed"});
  await assert.rejects(pushq.request("prices", 3), {code: "closed"});
  await aMoment(5);
});

test("a handler that runs while the client closes still gets the reply it waits for", async (t) => {
  const {pushq, sockets} = asking(t, {limits: {closeMs: 2_000}});
  const replies = [];
  pushq.subscribe("orders", {credit: 1}, async () => replies.push((await pushq.request("prices", 1)).body));
  const socket = await accepted(sockets);
  await inbox(socket);
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  await inbox(socket, 1);
  const {correlation_id} = await asked(socket);
  const closed = pushq.close();
  reply(socket, correlation_id, "yes", 2);
  settle(socket, await eventually(() => socket.last("ack")));
  for (const at of [0, 1]) socket.say({type: "ok", id: (await eventually(() => socket.frames("unsubscribe")[at])).id});
  await closed;
  assert.deepEqual(replies, ["yes"]);
  assert.deepEqual(socket.frames("unsubscribe").map(({sub}) => sub), [1, 2], "the queue of replies last");
});

test("a producer whose name cannot stand in a queue's name gets another one for its replies", async (t) => {
  const {pushq, sockets, calls} = asking(t, {producer: "Kasse 3 / Süd"});
  const promise = pushq.request("prices", 1);
  const socket = await accepted(sockets);
  await inbox(socket);
  assert.match(decodeURIComponent(calls[0].path), /^\/v1\/queues\/reply\.[0-9a-f]{24}$/);
  reply(socket, (await asked(socket)).correlation_id, "yes");
  await promise;
});

test("a time that is none is refused before anything is asked", async (t) => {
  const {pushq} = quickClient(t);
  for (const timeoutMs of [NaN, -1, "5s", Infinity]) {
    await assert.rejects(pushq.request("q", 1, {timeoutMs}), {code: "invalid-request", message: /timeoutMs/});
  }
});
