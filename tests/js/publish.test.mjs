/** Publishing: what goes into a frame, what a promise waits for, what is sent again. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {accepted, aMoment, confirm, entering, eventually, leased, quickClient, refuse, settle} from "./fakes.mjs";

test("publishes of one turn share a frame, of a hundred at most, and resolve with the server's answer", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promises = Array.from({length: 150}, (_, n) => pushq.publish("q", n));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => socket.frames("publish").length === 2);
  const [first, second] = socket.frames("publish");
  assert.deepEqual([first.messages.length, second.messages.length], [100, 50]);
  assert.deepEqual(first.messages.map(({body}) => body), Array.from({length: 100}, (_, n) => n));
  let isDone = false;
  promises[0].then(() => (isDone = true));
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(isDone, false);
  confirm(socket, first);
  confirm(socket, second);
  assert.equal((await promises[0]).seq, 0);
  assert.equal((await promises[149]).id, second.messages[49].id);
});

test("what was not confirmed is sent again after a reconnect, in order and under the same ids", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const first = pushq.publish("q", "a");
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => socket.frames("publish").length === 1);
  const second = pushq.publish("q", "b");
  await eventually(() => socket.frames("publish").length === 2);
  socket.end(1006);
  const third = pushq.publish("q", "c");
  const again = await eventually(() => sockets[1]);
  again.accept("s2");
  const frame = await eventually(() => again.last("publish"));
  assert.deepEqual(frame.messages.map(({body}) => body), ["a", "b", "c"]);
  assert.equal(frame.messages[0].id, socket.frames("publish")[0].messages[0].id);
  confirm(again, frame);
  await Promise.all([first, second, third]);
});

test("a wrong message fails alone: its neighbours in the frame are sent one by one", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const [good, bad] = [pushq.publish("q", "good"), pushq.publish("q", "bad", {headers: {}})];
  bad.catch(() => {});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  socket.say({type: "error", id: frame.id, problem: {code: "invalid-request", status: 400, detail: "message 1"}});
  await eventually(() => socket.frames("publish").length === 3);
  const [, alone, other] = socket.frames("publish");
  confirm(socket, alone);
  socket.say({type: "error", id: other.id, problem: {code: "invalid-request", status: 400, detail: "message 0"}});
  assert.equal((await good).duplicate, false);
  await assert.rejects(bad, {code: "invalid-request"});
});

test("where the refusal says whose fault it is, the others go again together, and each error is its own", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promises = [0, 1, 2, 3].map((n) => pushq.publish("q", n));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const wrong = (at, detail) => ({pointer: `/messages/${at}`, detail});
  const errors = [wrong("1/priority", "too high"), wrong("3/body", "too big")];
  refuse(socket, frame, {errors});
  await assert.rejects(promises[1], {code: "invalid-request", errors: [{pointer: "/priority", detail: "too high"}]});
  await assert.rejects(promises[3], {errors: [{pointer: "/body", detail: "too big"}]});
  const again = await eventually(() => socket.frames("publish")[1]);
  assert.deepEqual(again.messages.map(({body}) => body), [0, 2]);
  confirm(socket, again);
  await Promise.all([promises[0], promises[2]]);
});

test("a message that the server did not take rejects alone, beside others that are stored", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promises = ["a", "b", "c"].map((body) => pushq.publish("q", body));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const full = {code: "queue-full", status: 507, detail: "10 of 10 messages"};
  const stored = (seq) => ({id: `m${seq}`, seq, partition: 0, duplicate: false});
  const refused = {id: "m1", partition: 0, duplicate: false, error: full};
  socket.say({type: "ok", id: frame.id, messages: [stored(0), refused, stored(2)]});
  const outcomes = await Promise.allSettled(promises);
  assert.deepEqual(outcomes.map(({status}) => status), ["fulfilled", "rejected", "fulfilled"]);
  assert.deepEqual([outcomes[1].reason.code, outcomes[1].reason.status], ["queue-full", 507]);
  assert.deepEqual(outcomes[2].value, stored(2));
  await aMoment();
  assert.equal(socket.frames("publish").length, 1);
});

test("a message that was refused for the moment goes again alone, the same as before", async (t) => {
  const {pushq, sockets} = quickClient(t);
  pushq.addEventListener("problem", () => {});
  const promises = ["a", "b"].map((body) => pushq.publish("q", body));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const error = {code: "overloaded", status: 503, detail: "too many are held"};
  const answer = (more) => ({id: "m", partition: 0, duplicate: false, ...more});
  socket.say({type: "ok", id: frame.id, messages: [answer({error}), answer({seq: 1})]});
  assert.equal((await promises[1]).seq, 1);
  const again = await eventually(() => socket.frames("publish")[1]);
  assert.deepEqual(again.messages, [frame.messages[0]]);
  confirm(socket, again);
  await promises[0];
});

test("options may be given in either spelling, and times as dates", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const deliverAt = new Date("2030-01-02T03:04:05.678Z");
  const same = {id: "i", key: "k", priority: 3, headers: {h: "1"}};
  const given = {...same, contentType: "text/plain", replyTo: "r", correlationId: "c"};
  const first = pushq.publish("q", 1, {...given, delayMs: 10, ttlMs: 20});
  const second = pushq.publish("q", 2, {deliverAt, delay_ms: 5, reply_to: "r"});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const bare = frame.messages.map(({producer, producer_seq, timestamp, ...message}) => message);
  const travels = {...same, content_type: "text/plain", reply_to: "r", correlation_id: "c"};
  assert.deepEqual(bare[0], {...travels, delay_ms: 10, ttl_ms: 20, body: 1});
  const {id, ...rest} = bare[1];
  assert.deepEqual(rest, {deliver_at: "2030-01-02T03:04:05.678Z", delay_ms: 5, reply_to: "r", body: 2});
  confirm(socket, frame);
  await Promise.all([first, second]);
  const never = pushq.publish("q", 3, {deliverAt: new Date(NaN)});
  await assert.rejects(never, {code: "invalid-request", message: /deliverAt/});
});

test("a refusal for the moment is tried again when the server said", async (t) => {
  const {pushq, sockets} = quickClient(t);
  pushq.addEventListener("problem", () => {});
  const promise = pushq.publish("q", 1);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const problem = {code: "overloaded", status: 503, detail: "later", retry_after_ms: 60};
  socket.say({type: "error", id: frame.id, problem});
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(socket.frames("publish").length, 1);
  const again = await eventually(() => socket.frames("publish")[1]);
  assert.equal(again.messages[0].id, frame.messages[0].id);
  confirm(socket, again);
  await promise;
});

test("what was lost on the way fails at its deadline, and says that it may be stored", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishTimeoutMs: 50}});
  const promise = pushq.publish("q", 1);
  (await eventually(() => sockets[0])).accept();
  await assert.rejects(promise, {code: "timeout", message: /may have been stored/});
});

test("what never left fails at its deadline, and says that too", async (t) => {
  const {pushq} = quickClient(t, {limits: {publishTimeoutMs: 50}});
  await assert.rejects(pushq.publish("q", 1), {code: "timeout", message: /was not sent/});
});

test("while handlers finish a closing client still publishes; a closed one does not", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => pushq.state === "connected");
  await pushq.close();
  await assert.rejects(pushq.publish("q", 1), {code: "closed"});
});

test("the buffer is bounded and refuses with its own code", async (t) => {
  const {pushq} = quickClient(t, {limits: {publishBufferMessages: 2}});
  const kept = [pushq.publish("q", 1), pushq.publish("q", 2)];
  kept.forEach((promise) => promise.catch(() => {}));
  await assert.rejects(pushq.publish("q", 3), {code: "buffer-full"});
});

test("a message too large for a frame is refused here: the server would close the connection for good", async (t) => {
  const {pushq} = quickClient(t);
  await assert.rejects(pushq.publish("q", "x".repeat(3 * 1024 * 1024)), {code: "message-too-large"});
});

test("the window holds back what the server has not confirmed", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishWindowMessages: 150}});
  const promises = Array.from({length: 250}, (_, n) => pushq.publish("q", n));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => socket.frames("publish").length === 2);
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(socket.frames("publish").flatMap(({messages}) => messages).length, 150);
  confirm(socket, socket.frames("publish")[0]);
  await eventually(() => socket.frames("publish").length > 2);
  for (let at = 1; at < socket.frames("publish").length; at += 1) {
    confirm(socket, socket.frames("publish")[at]);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.equal((await Promise.all(promises)).length, 250);
});

test("bytes travel as base64 with a content type", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promise = pushq.publish("q", new Uint8Array([0, 255, 7]), {key: "k"});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const {key, body_base64, content_type} = frame.messages[0];
  assert.deepEqual([key, body_base64, content_type], ["k", "AP8H", "application/octet-stream"]);
  confirm(socket, frame);
  await promise;
});

test("publishMany answers in the order of its messages", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promise = pushq.publishMany("q", [{body: 1, id: "one"}, {body: 2, id: "two"}]);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  confirm(socket, await eventually(() => socket.last("publish")));
  assert.deepEqual((await promise).map(({id}) => id), ["one", "two"]);
});

test("a frame tells the server what is left of its publishes' time, and those of another time have their own", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const times = [{timeoutMs: 5_000}, {timeout_ms: 5_000}, {timeoutMs: 8_000}, {}];
  const promise = pushq.publishMany("q", times.map((time, body) => ({body, ...time})));
  await new Promise((resolve) => setTimeout(resolve, 20));
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => socket.frames("publish").length === 3);
  const [first, second, third] = socket.frames("publish");
  assert.deepEqual([first, second, third].map(({messages}) => messages.map(({body}) => body)), [[0, 1], [2], [3]]);
  assert.ok(first.timeout_ms > 3_000 && first.timeout_ms < 5_000, `${first.timeout_ms}`);
  assert.ok(second.timeout_ms > 6_000 && second.timeout_ms < 8_000, `${second.timeout_ms}`);
  assert.equal(third.timeout_ms, undefined);
  [first, second, third].forEach((frame) => confirm(socket, frame));
  await promise;
});

test("without an answer a publish is given up a little after its own time", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishGraceMs: 100}});
  const began = Date.now();
  const promise = pushq.publish("q", 1, {timeoutMs: 50});
  (await eventually(() => sockets[0])).accept();
  await assert.rejects(promise, {code: "timeout", message: /may have been stored/});
  assert.ok(Date.now() - began >= 150);
});

test("what never left is given up when its own time is over", async (t) => {
  const {pushq, sockets} = quickClient(t);
  await assert.rejects(pushq.publish("q", 1, {timeoutMs: 30}), {code: "timeout", message: /was not sent/});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  await eventually(() => pushq.state === "connected");
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(socket.frames("publish").length, 0);
});

for (const code of ["overloaded", "outcome-unknown"]) {
  test(`what the server refuses as ${code} when the time is over does not go again`, async (t) => {
    const {pushq, sockets} = quickClient(t);
    pushq.addEventListener("problem", () => {});
    const socket = await eventually(() => sockets[0]);
    socket.accept();
    const promise = pushq.publish("q", 1, {timeoutMs: 60});
    promise.catch(() => {});
    const frame = await eventually(() => socket.last("publish"));
    await new Promise((resolve) => setTimeout(resolve, 80));
    socket.say({type: "error", id: frame.id, problem: {code, status: 503, detail: "no"}});
    await assert.rejects(promise, {code});
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(socket.frames("publish").length, 1);
  });
}

test("a time that no server would take is refused before it leaves", async (t) => {
  const {pushq} = quickClient(t);
  for (const timeoutMs of [0, -1, 1.5, 60_001, "5"]) {
    await assert.rejects(pushq.publish("q", 1, {timeoutMs}), {code: "invalid-request", message: /timeoutMs/});
  }
});

test("a body that JSON would store as something else is refused before anything is sent", async (t) => {
  const {pushq, sockets} = quickClient(t);
  for (const body of [NaN, [1, {a: -Infinity}]]) {
    await assert.rejects(pushq.publish("q", body), {code: "invalid-request", message: /NaN and infinity/});
  }
  const bytes = new Uint8Array([1, 2]);
  for (const body of [{a: bytes}, {a: Buffer.from([1])}, [new Float64Array(1)], {a: {b: bytes.buffer}}, [new Uint8Array()]]) {
    await assert.rejects(pushq.publish("q", body), {code: "invalid-request", message: /bytes inside a value/});
  }
  const good = [null, {a: null}, {}, {"0": 1}, "null", bytes, bytes.buffer, new DataView(bytes.buffer, 1)];
  for (const body of good) pushq.publish("q", body).catch(() => {});
  pushq.publish("q", bytes, {headers: {a: "null"}}).catch(() => {});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const {messages} = await eventually(() => socket.last("publish"));
  assert.deepEqual(messages.slice(0, 5).map(({body}) => body), good.slice(0, 5));
  assert.deepEqual(messages.slice(5).map(({body_base64}) => body_base64), ["AQI=", "AQI=", "Ag==", "AQI="]);
});

test("a computer's clock that is set back holds up neither a pause nor a deadline", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishTimeoutMs: 200}});
  const promise = pushq.publish("q", 1);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  refuse(socket, frame, {code: "overloaded", status: 503, retry_after_ms: 30});
  await aMoment(5);
  const now = Date.now;
  t.mock.method(Date, "now", () => now() - 3_600_000);
  await eventually(() => socket.frames("publish")[1]);
  await assert.rejects(promise, {code: "timeout", message: /may have been stored/});
});

test("what the server could not read is its caller's error: the connection is everybody's", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const half = "\u{1f600}".slice(0, 1); // of a text that was cut in the middle of a character
  const refused = (message) => ({code: "invalid-request", message});
  const good = pushq.publish("q", [`\\${"ud83d"} is no character here, and \u{1f600} is one`, null], {key: "k"});
  await assert.rejects(pushq.publish("q", {a: half}), refused(/unpaired surrogate/));
  await assert.rejects(pushq.publish("q", `\\${half}`), refused(/unpaired surrogate/));
  await assert.rejects(pushq.publish("q", new Uint8Array(), {headers: {a: half}}), refused(/unpaired surrogate/));
  await assert.rejects(pushq.publish(half, 1), refused(/unpaired surrogate/));
  for (const queue of [undefined, null, 7]) await assert.rejects(pushq.publish(queue, 1), refused(/name must be a string, not/));
  for (const queue of ["..", "a/b"]) await assert.rejects(pushq.publish(queue, 1), refused(/invalid queue name/));
  for (const delayMs of [NaN, Infinity]) await assert.rejects(pushq.publish("q", 1, {delayMs}), refused(/delayMs is/));
  const socket = await accepted(sockets);
  const frame = await eventually(() => socket.last("publish"));
  assert.equal(frame.messages.length, 1);
  confirm(socket, frame);
  await good;
});

test("publishMany takes messages, and no bodies: a number would be stored as null", async (t) => {
  const {pushq} = quickClient(t);
  for (const wrong of [1, "a", null, {}, {item: 7}]) {
    await assert.rejects(pushq.publishMany("q", [{body: 1}, wrong]), {code: "invalid-request", message: /\{body, …options\}/});
  }
});

/** A client over long-poll: each request gets the next of these answers, and where there are no more, a good one. */
function answered(t, answers, options = {}) {
  const asked = [];
  const fetch = async (url, {method = "GET", body} = {}) => {
    if (method === "GET") return Response.json({items: []});
    asked.push(url);
    const {messages} = JSON.parse(body);
    const good = () => Response.json({messages: messages.map(({id}, seq) => ({id, seq, partition: 0, duplicate: false}))});
    return answers.shift()?.() ?? good();
  };
  const {pushq} = quickClient(t, {transports: ["poll"], fetch, ...options});
  const problems = [];
  pushq.addEventListener("problem", ({detail}) => problems.push(detail.error));
  return {pushq, asked, problems};
}

test("what a proxy says in place of the server is no refusal: the publish goes again", async (t) => {
  const page = () => new Response("<html>sign in</html>", {status: 200, headers: {"content-type": "text/html"}});
  const gone = () => new Response("<html>502</html>", {status: 502});
  const {pushq, asked} = answered(t, [page, gone]);
  assert.equal((await pushq.publish("q", 1)).seq, 0);
  assert.equal(asked.length, 3);
});

test("a proxy that asks for patience without a problem document gets it", async (t) => {
  const busy = (status, headers) => () => new Response("slow down", {status, headers});
  const {pushq, problems} = answered(t, [busy(429, {"retry-after": "0"})], {limits: {backoffBaseMs: 1}});
  await pushq.publish("q", 1);
  assert.deepEqual(problems.map(({code, status}) => [code, status]), [["rate-limited", 429]]);
  const away = answered(t, [busy(503, {"retry-after": "7"})]);
  const waits = entering(away.pushq, "waiting");
  away.pushq.publish("q", 1).catch(() => {});
  assert.ok((await waits).retryMs >= 7_000);
  const asked = answered(t, [busy(429, {"retry-after": "7"})], {limits: {publishTimeoutMs: 100}});
  await assert.rejects(asked.pushq.publish("q", 1), {code: "rate-limited", retryAfterMs: 7_000});
});

test("what asks for a day holds the next publish, an ack and a subscription no longer than the limit", async (t) => {
  const aDay = {code: "rate-limited", status: 429, retry_after_ms: 86_400_000};
  const {pushq, sockets} = quickClient(t, {limits: {askedWaitMs: 40}});
  pushq.addEventListener("problem", () => {});
  pushq.subscribe("q", {}, () => {});
  const published = pushq.publish("q", 1);
  const socket = await accepted(sockets);
  refuse(socket, await eventually(() => socket.last("publish")), aDay);
  refuse(socket, await eventually(() => socket.last("subscribe")), aDay);
  confirm(socket, await eventually(() => socket.frames("publish")[1]));
  await published;
  socket.say({type: "ok", id: (await eventually(() => socket.frames("subscribe")[1])).id, sub: 1, resume: "complete"});
  socket.say({type: "deliver", sub: 1, messages: [leased(1)]});
  refuse(socket, await eventually(() => socket.last("ack")), aDay);
  settle(socket, await eventually(() => socket.frames("ack")[1]));
});

test("refusals without a problem document have the code of their status", async (t) => {
  for (const [status, code] of [[401, "unauthenticated"], [403, "forbidden"], [404, "not-found"], [413, "message-too-large"], [418, "invalid-request"]]) {
    const {pushq} = answered(t, [401, 403, 404, 413, 418].map(() => () => new Response("no", {status})));
    await assert.rejects(pushq.publish("q", 1), {code, status});
  }
});
