/** Publishing: what goes into a frame, what a promise waits for, what is sent again. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {connect} from "../../push/js/pushq.js";
import {confirm, eventually, fakeSockets, stayAwake} from "./fakes.mjs";

const QUICK = {backoffBaseMs: 1, backoffCapMs: 2, tickMs: 20, closeMs: 10};

function client(t, limits = {}) {
  stayAwake(t);
  const {WebSocket, sockets} = fakeSockets();
  const given = {url: "http://test", token: "k", transports: ["websocket"], WebSocket};
  const pushq = connect({...given, limits: {...QUICK, ...limits}});
  t.after(() => pushq.close());
  return {pushq, sockets};
}

test("publishes of one turn share a frame, of a hundred at most, and resolve with the server's answer", async (t) => {
  const {pushq, sockets} = client(t);
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
  const {pushq, sockets} = client(t);
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
  const {pushq, sockets} = client(t);
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

test("a refusal for the moment is tried again when the server said", async (t) => {
  const {pushq, sockets} = client(t);
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
  const {pushq, sockets} = client(t, {publishTimeoutMs: 50});
  const promise = pushq.publish("q", 1);
  (await eventually(() => sockets[0])).accept();
  await assert.rejects(promise, {code: "timeout", message: /may be stored/});
});

test("the buffer is bounded and refuses with its own code", async (t) => {
  const {pushq} = client(t, {publishBufferMessages: 2});
  const kept = [pushq.publish("q", 1), pushq.publish("q", 2)];
  kept.forEach((promise) => promise.catch(() => {}));
  await assert.rejects(pushq.publish("q", 3), {code: "buffer-full"});
});

test("a message too large for a frame is refused here: the server would close the connection for good", async (t) => {
  const {pushq} = client(t);
  await assert.rejects(pushq.publish("q", "x".repeat(3 * 1024 * 1024)), {code: "message-too-large"});
});

test("the window holds back what the server has not confirmed", async (t) => {
  const {pushq, sockets} = client(t, {publishWindowMessages: 150});
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
  const {pushq, sockets} = client(t);
  const promise = pushq.publish("q", new Uint8Array([0, 255, 7]), {key: "k"});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  const frame = await eventually(() => socket.last("publish"));
  const {id, ...message} = frame.messages[0];
  assert.deepEqual(message, {key: "k", body_base64: "AP8H", content_type: "application/octet-stream"});
  assert.match(id, /^[0-9a-f]{32}$/);
  confirm(socket, frame);
  await promise;
});

test("publishMany answers in the order of its messages", async (t) => {
  const {pushq, sockets} = client(t);
  const promise = pushq.publishMany("q", [{body: 1, id: "one"}, {body: 2, id: "two"}]);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  confirm(socket, await eventually(() => socket.last("publish")));
  assert.deepEqual((await promise).map(({id}) => id), ["one", "two"]);
});
