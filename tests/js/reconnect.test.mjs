/** The client's loop: which transport, when again, when never. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {connect} from "../../push/js/pushq.js";
import {aMoment, entering, event, eventually, quickClient} from "./fakes.mjs";

test("the first frame is connect with the token, over the JSON subprotocol, at /v1/ws", async (t) => {
  const {sockets} = quickClient(t, {token: async () => "secret"});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  assert.deepEqual([socket.url, socket.protocol], ["ws://test/v1/ws", "pushq.v1.json"]);
  assert.deepEqual(socket.sent[0], {type: "connect", id: 0, token: "secret"});
});

test("the token is asked for again on every connect, and a resume names the session", async (t) => {
  let asked = 0;
  const {sockets} = quickClient(t, {token: () => `t${(asked += 1)}`});
  (await eventually(() => sockets[0])).accept("s1");
  sockets[0].end(4401);
  const again = await eventually(() => sockets[1]);
  again.open();
  assert.deepEqual(again.sent[0], {type: "connect", id: 0, token: "t2", resume: {session: "s1"}});
});

test("an expiring token is refreshed on the open connection", async (t) => {
  let asked = 0;
  const inMs = (ms) => new Date(Date.now() + ms).toISOString();
  const token = () => ({token: `t${(asked += 1)}`, expires_at: inMs(asked === 1 ? 60 : 3_600_000)});
  const {sockets} = quickClient(t, {token, limits: {refreshAheadMs: 50}});
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  assert.equal((await eventually(() => socket.last("refresh"))).token, "t2");
  socket.say({type: "ok", id: socket.last("refresh").id});
});

test("of a short token half the life is used, and a token that could not be had is asked for again", async (t) => {
  let asked = 0;
  const token = () => {
    asked += 1;
    if (asked === 2) throw new Error("the backend is away");
    return {token: `t${asked}`, expires_at: new Date(Date.now() + (asked === 1 ? 400 : 3_600_000)).toISOString()};
  };
  const {pushq, sockets} = quickClient(t, {token, limits: {refreshRetryMs: 20}});
  pushq.addEventListener("problem", () => {});
  const began = Date.now();
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  assert.equal((await eventually(() => socket.last("refresh"))).token, "t3");
  const usedMs = Date.now() - began;
  assert.ok(usedMs >= 190, `${usedMs} ms`);
});

test("by a clock that is ahead a token is over when it comes, and is not asked for with each look", async (t) => {
  let asked = 0;
  const token = () => ({token: `t${(asked += 1)}`, expires_at: new Date(Date.now() - 60_000).toISOString()});
  const {sockets} = quickClient(t, {token, limits: {refreshRetryMs: 60_000}});
  (await eventually(() => sockets[0])).accept();
  await aMoment(200); // ten looks at the clock
  assert.equal(asked, 1);
});

test("a close code of the 45xx kind stops for good, with the server's reason", async (t) => {
  const {pushq, sockets} = quickClient(t, {token: "wrong"});
  const failed = entering(pushq, "failed");
  const publish = pushq.publish("q", 1);
  const socket = await eventually(() => sockets[0]);
  socket.open();
  pushq.addEventListener("problem", () => {});
  socket.say({type: "error", problem: {code: "unauthenticated", status: 401, detail: "this key was revoked"}});
  socket.end(4501);
  assert.match((await failed).error.message, /revoked/);
  await assert.rejects(publish, {code: "unauthenticated"});
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(sockets.length, 1);
  assert.equal(pushq.state, "failed");
});

test("bye is told, and the jitter comes after what it asks", async (t) => {
  const {pushq, sockets} = quickClient(t);
  (await eventually(() => sockets[0])).accept();
  const bye = event(pushq, "bye");
  sockets[0].say({type: "bye", code: 4000, reason: "drain", retry_ms: 4_000});
  assert.deepEqual(await bye, {code: 4000, reason: "drain", retry_ms: 4_000});
  t.mock.method(Math, "random", () => 0.5);
  const waiting = entering(pushq, "waiting");
  sockets[0].end(4000);
  assert.equal((await waiting).retryMs, 4_000.5);
});

test("pings are answered, and a server that falls silent is left", async (t) => {
  const {sockets} = quickClient(t, {limits: {silenceGraceMs: 40}});
  const socket = await eventually(() => sockets[0]);
  socket.accept("s1", {ping_ms: 20});
  socket.say({type: "ping"});
  assert.ok(socket.last("pong"));
  const again = await eventually(() => sockets[1]);
  assert.equal(socket.closedWith, 3000);
  again.open();
  assert.deepEqual(again.sent[0].resume, {session: "s1"});
});

test("a frame that is no JSON costs the connection, not the page", async (t) => {
  const {sockets} = quickClient(t);
  const socket = await eventually(() => sockets[0]);
  socket.accept();
  socket.onmessage({data: "{oops"});
  await eventually(() => sockets[1]);
});

test("a WebSocket that never opens gives way to SSE at once", async (t) => {
  const asked = [];
  const fetch = async (url) => {
    asked.push(url);
    return new Response('{"items": [], "next": null}', {status: 200});
  };
  const {pushq, sockets} = quickClient(t, {transports: ["ws", "sse"], fetch});
  (await eventually(() => sockets[0])).end(1006);
  await eventually(() => pushq.state === "connected");
  assert.equal(pushq.transport, "sse");
  assert.deepEqual(asked, ["http://test/v1/queues?limit=1"]);
});

test("where no stream can be opened the messages are polled for, and requests go on over the connection", async (t) => {
  for (const refuse of [() => new Response("bad gateway", {status: 502}), () => Promise.reject(new TypeError("reset"))]) {
    const asked = [];
    const waiting = [{id: "1", body: "hello", receipt: "t.0"}];
    const fetch = async (url, {method = "GET"}) => {
      const target = new URL(url).pathname;
      asked.push(`${method} ${target}`);
      if (target.endsWith("/events")) return refuse();
      if (target.endsWith("/receive")) return aMoment().then(() => Response.json({messages: waiting.splice(0)}));
      if (target.endsWith("/ack")) return Response.json({results: [{receipt: "t.0", ok: true}]});
      return Response.json(target.endsWith("/q") ? {config: {kind: "work"}} : {items: [], next: null});
    };
    const {pushq} = quickClient(t, {transports: ["sse", "poll"], fetch});
    const got = [];
    await pushq.subscribe("q", {credit: 5}, async ({body}) => void got.push(body)).ready;
    await eventually(() => asked.includes("POST /v1/queues/q/ack"), "an ack");
    assert.deepEqual(got, ["hello"]);
    assert.equal(asked.filter((line) => line.endsWith("/events")).length, 1);
    await pushq.close();
  }
});

test("a WebSocket that has worked is tried again before anything else", async (t) => {
  const fetch = () => Promise.reject(new TypeError("refused"));
  const {pushq, sockets} = quickClient(t, {transports: ["ws", "sse"], fetch});
  (await eventually(() => sockets[0])).accept();
  sockets[0].end(1006);
  (await eventually(() => sockets[1])).end(1006);
  (await eventually(() => sockets[2])).accept();
  await eventually(() => pushq.state === "connected");
  assert.equal(pushq.transport, "ws");
});

test("an HTTP token that the server no longer takes is replaced once, then it stops", async (t) => {
  let asked = 0;
  const fetch = async () => Response.json({code: "unauthenticated", detail: "expired"}, {status: 401});
  const {pushq} = quickClient(t, {transports: ["poll"], token: () => `t${(asked += 1)}`, fetch});
  await eventually(() => pushq.state === "failed");
  assert.equal(asked, 2);
});

test("no frame of the trace carries a token", async (t) => {
  const lines = [];
  const {sockets} = quickClient(t, {token: "very-secret", trace: (_, text) => lines.push(text)});
  (await eventually(() => sockets[0])).accept();
  assert.ok(lines.length >= 2);
  assert.ok(lines.every((line) => !line.includes("very-secret")));
});

test("a transport nobody knows is an error at once", () => {
  assert.throws(() => connect({transports: ["carrier-pigeon"]}), /carrier-pigeon/);
});

test("the earlier names of transports are taken, and told as the ones of now", async (t) => {
  const {pushq, sockets} = quickClient(t, {transports: ["websocket", "longpoll"]});
  (await eventually(() => sockets[0])).accept();
  await eventually(() => pushq.state === "connected");
  assert.equal(pushq.transport, "ws");
});

test("an option nobody knows is refused, with the nearest one", () => {
  assert.throws(() => connect({tokn: "x"}), /connect has no option "tokn"; did you mean "token"\?/);
  assert.throws(() => connect({key: "x"}), /has no option "key"; did you mean "token"\?/);
  assert.throws(() => connect({replyqueue: "x"}), /did you mean "replyQueue"\?/);
  assert.throws(() => connect({zzzzzzzz: 1}), /connect has no option "zzzzzzzz"$/);
  assert.throws(() => connect({limits: {openMS: 1}}), /connect\(\{limits\}\) has no option "openMS"; did you mean "openMs"/);
});

test("a token that cannot be had is told at once, once, and no other transport is tried for it", async (t) => {
  let asked = 0;
  const token = async () => {
    asked += 1;
    throw new Error("401 of the shop");
  };
  const fetch = () => assert.fail("no transport can help");
  const {pushq, sockets} = quickClient(t, {token, transports: ["ws", "sse", "poll"], fetch});
  const problems = [];
  pushq.addEventListener("problem", ({detail}) => problems.push(detail.error));
  await eventually(() => asked > 3);
  assert.deepEqual(problems.map(({detail}) => detail), ["the function that gives the token failed: 401 of the shop"]);
  assert.equal(problems[0].cause.message, "401 of the shop");
  assert.equal(sockets.length, 0);
});

test("a server that is not there is told at once, and again after it was; a publish that waited says so, too", async (t) => {
  let isThere = false;
  const fetch = async () => {
    if (!isThere) throw new TypeError("fetch failed", {cause: new Error("connect ECONNREFUSED")});
    return new Response('{"items": [], "next": null}', {status: 200});
  };
  const {pushq} = quickClient(t, {transports: ["sse"], fetch, limits: {publishTimeoutMs: 100}});
  const problems = [];
  pushq.addEventListener("problem", ({detail}) => problems.push(detail.error.detail));
  const why = "no response from http://test: connect ECONNREFUSED";
  await assert.rejects(pushq.publish("q", 1), {code: "timeout", message: /was not sent; not connected: no response/});
  assert.deepEqual(problems, [why]);
  isThere = true;
  await eventually(() => pushq.state === "connected");
  isThere = false;
  pushq.reconnect();
  await eventually(() => problems.length > 1);
  assert.deepEqual(problems, [why, why]);
});

test("a token function that does not answer is told, and is what a publish waited for", async (t) => {
  let give;
  const token = () => new Promise((resolve) => (give = resolve));
  const {pushq, sockets} = quickClient(t, {token, limits: {openMs: 20, publishTimeoutMs: 100}});
  const told = event(pushq, "problem");
  const why = /the function that gives the token has not answered for 20 ms/;
  await assert.rejects(pushq.publish("q", 1), {code: "timeout", message: why});
  assert.match((await told).error.message, why);
  give("late");
  (await eventually(() => sockets[0])).accept();
  assert.equal(sockets[0].last("connect").token, "late");
  await eventually(() => pushq.state === "connected");
});
