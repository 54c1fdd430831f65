/** What a handler may rely on: side by side or in order, groups of a stream, queues that deliver at most once. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {aMoment, accepted, event, eventually, leased, quickClient, settle, subscribed} from "./fakes.mjs";

/** A handler that records beginnings and ends, and ends each message when told. */
function gate() {
  const log = [];
  const ends = new Map();
  const handler = ({body}) => {
    log.push(`+${body}`);
    return new Promise((resolve, reject) => ends.set(body, {resolve, reject})).finally(() => log.push(`-${body}`));
  };
  const end = async (body, error) => {
    const {resolve, reject} = await eventually(() => ends.get(body), `the handler of ${body}`);
    ends.delete(body);
    error ? reject(error) : resolve();
    await aMoment(5);
  };
  return {log, handler, end};
}

const deliver = (socket, ...messages) => socket.say({type: "deliver", sub: 1, messages});

test("on a strict queue messages of one key are handled one after the other, keys side by side", async (t) => {
  const {log, handler, end} = gate();
  const {socket} = await subscribed(t, {credit: 8}, handler, {ok: {ordering: "strict"}});
  deliver(socket, leased(1, {key: "a"}), leased(2, {key: "b"}), leased(3, {key: "a"}), leased(4, {key: "a"}));
  assert.deepEqual(log, ["+1", "+2"]);
  await end(1);
  assert.deepEqual(log, ["+1", "+2", "-1", "+3"]);
  await end(3);
  await end(4);
  await end(2);
  assert.deepEqual(log, ["+1", "+2", "-1", "+3", "-3", "+4", "-4", "-2"]);
});

test("on a strict queue messages without a key are in one order", async (t) => {
  const {log, handler, end} = gate();
  const {socket} = await subscribed(t, {credit: 8}, handler, {ok: {ordering: "strict"}});
  deliver(socket, leased(1), leased(2));
  await end(1);
  await end(2);
  assert.deepEqual(log, ["+1", "-1", "+2", "-2"]);
});

test("what waits behind a failed message of its key goes back with it, unhandled and uncounted", async (t) => {
  const {log, handler, end} = gate();
  const {pushq, socket} = await subscribed(t, {credit: 8}, handler, {ok: {ordering: "strict"}});
  pushq.addEventListener("problem", () => {});
  const keyed = (n, key) => leased(n, {key});
  deliver(socket, keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), keyed(4, "a"));
  await end(1, new Error("no"));
  await eventually(() => socket.frames("nack")[1]);
  const told = socket.frames("nack").map(({receipts, tried, delay_ms}) => [receipts, tried, delay_ms]);
  assert.deepEqual(told, [[["t.1"], undefined, told[0][2]], [["t.2", "t.4"], false, undefined]], "the server has the key wait");
  await end(3);
  assert.deepEqual(log, ["+1", "+3", "-1", "-3"]);
  deliver(socket, leased(1, {key: "a", receipt: "u.1", attempt: 2}), leased(2, {key: "a", receipt: "u.2", attempt: 2}));
  await end(1);
  await end(2);
  assert.deepEqual(log.slice(4), ["+1", "-1", "+2", "-2"]);
});

test("with a delay the ones behind come back no earlier", async (t) => {
  const handler = (message) => message.nack({delayMs: 700, reason: "busy"});
  const {socket} = await subscribed(t, {credit: 8, inOrder: true}, handler);
  deliver(socket, leased(1), leased(2));
  const nack = await eventually(() => socket.last("nack"));
  settle(socket, nack);
  const behind = await eventually(() => socket.frames("nack")[1]);
  assert.deepEqual([nack.receipts, behind.receipts, behind.delay_ms], [["t.1"], ["t.2"], 700]);
  assert.deepEqual([nack.tried, behind.tried], [undefined, false]);
});

test("where only the back-off of the queue keeps them behind, they go back as the failed one does", async (t) => {
  const fails = () => Promise.reject(new Error("no"));
  const {pushq, socket} = await subscribed(t, {credit: 8, inOrder: true}, fails, {ok: {retry_backoff_ms: 100}});
  pushq.addEventListener("problem", () => {});
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("nack")[1]);
  const told = socket.frames("nack").map(({receipts, tried, delay_ms}) => [receipts, tried, delay_ms]);
  assert.deepEqual(told, [[["t.1"], undefined, undefined], [["t.2"], undefined, undefined]]);
});

test("where the queue has no back-off, what is behind a message that failed waits as long, and was no attempt", async (t) => {
  const {pushq, socket} = await subscribed(t, {credit: 8, inOrder: true}, () => Promise.reject(new Error("no")));
  pushq.addEventListener("problem", () => {});
  deliver(socket, leased(1), leased(2));
  await eventually(() => socket.frames("nack")[1]);
  const [failed, behind] = socket.frames("nack");
  assert.deepEqual([failed.receipts, failed.tried, behind.receipts, behind.tried], [["t.1"], undefined, ["t.2"], false]);
  assert.ok(failed.delay_ms >= 500 && behind.delay_ms === failed.delay_ms, failed.delay_ms);
});

test("a lost lease stops its line: who has the message now comes first", async (t) => {
  const {log, handler, end} = gate();
  const {pushq, socket} = await subscribed(t, {credit: 8}, handler, {ok: {ordering: "strict"}});
  const lost = event(pushq, "lost");
  deliver(socket, leased(1), leased(2));
  socket.say({type: "lost", sub: 1, receipts: ["t.1"]});
  await lost;
  await end(1);
  assert.deepEqual(log, ["+1", "-1"]);
  assert.deepEqual((await eventually(() => socket.last("nack"))).receipts, ["t.2"]);
});

test("leases of what waits in a line are extended while the line moves", async (t) => {
  const {handler, end} = gate();
  const options = {credit: 2, inOrder: true, visibilityTimeoutMs: 100};
  const {socket} = await subscribed(t, options, handler);
  deliver(socket, leased(1), leased(2));
  const extended = await eventually(() => socket.last("extend"));
  assert.deepEqual(extended.receipts, ["t.1", "t.2"]);
  await end(1);
  await end(2);
});

test("the limit of a handler counts from its own beginning, not from when its message came", async (t) => {
  const {handler, end} = gate();
  const options = {credit: 2, inOrder: true, visibilityTimeoutMs: 100, maxHandlerMs: 300};
  const {socket} = await subscribed(t, options, handler);
  deliver(socket, leased(1), leased(2));
  await aMoment(200);
  await end(1);
  await aMoment(150); // 350 ms after it came, 150 ms after its handler began
  const before = socket.frames("extend").length;
  const isExtended = () => socket.frames("extend").slice(before).some(({receipts}) => receipts.includes("t.2"));
  assert.ok(await eventually(isExtended));
  await end(2);
});

test("what waits behind a handler that hangs goes back untried", async (t) => {
  const {log, handler, end} = gate();
  const options = {credit: 2, inOrder: true, visibilityTimeoutMs: 100, maxHandlerMs: 150};
  const {socket} = await subscribed(t, options, handler);
  deliver(socket, leased(1), leased(2));
  const back = await eventually(() => socket.last("nack"));
  assert.deepEqual([back.receipts, back.tried], [["t.2"], false]);
  await end(1);
  assert.deepEqual(log, ["+1", "-1"]);
});

test("the caller may ask for any order", async (t) => {
  for (const [inOrder, begun] of [[false, ["+1", "+2", "+3"]], ["key", ["+1", "+3"]], [true, ["+1"]]]) {
    const {log, handler} = gate();
    const {socket} = await subscribed(t, {credit: 8, inOrder}, handler, {ok: {ordering: "strict"}});
    deliver(socket, leased(1, {key: "a"}), leased(2, {key: "a"}), leased(3, {key: "b"}));
    assert.deepEqual(log, begun, String(inOrder));
  }
});

test("closing gives back what has not begun, and waits for what has", async (t) => {
  const {log, handler, end} = gate();
  const {subscription, socket} = await subscribed(t, {credit: 8, inOrder: true}, handler);
  deliver(socket, leased(1), leased(2));
  const closed = subscription.close();
  await end(1);
  await eventually(() => socket.last("ack") && socket.last("nack"));
  assert.deepEqual([socket.last("ack").receipts, socket.last("nack").receipts], [["t.1"], ["t.2"]]);
  assert.equal(socket.last("nack").tried, false, "it has not begun");
  settle(socket, socket.last("nack"));
  settle(socket, socket.last("ack"));
  socket.say({type: "ok", id: (await eventually(() => socket.last("unsubscribe"))).id});
  await closed;
  assert.deepEqual(log, ["+1", "-1"]);
});

test("a member of a stream's group names it with a credit, and handles in order, ack by ack", async (t) => {
  const {log, handler, end} = gate();
  const {socket, frame} = await subscribed(t, {group: "g", from: "earliest"}, handler, {ok: {mode: "offsets"}});
  assert.deepEqual([frame.group, frame.from, frame.credit > 0], ["g", "earliest", true]);
  deliver(socket, leased(1), leased(2));
  await end(1);
  assert.deepEqual((await eventually(() => socket.last("ack"))).receipts, ["t.1"]);
  await end(2);
  assert.deepEqual(log, ["+1", "-1", "+2", "-2"]);
});

test("a group with leases of its own hands out side by side", async (t) => {
  const {log, handler} = gate();
  const {socket} = await subscribed(t, {group: "g"}, handler, {ok: {mode: "leases"}});
  deliver(socket, leased(1), leased(2));
  assert.deepEqual(log, ["+1", "+2"]);
});

test("a group keeps its own place: after a cut it is not sent back to where it began", async (t) => {
  const {subscription, socket, sockets} = await subscribed(t, {group: "g", from: "earliest"}, () => {});
  socket.say({type: "deliver", sub: 1, cursor: "c1", messages: [leased(1)]});
  assert.equal(subscription.cursor, null);
  socket.end(1006);
  const again = await accepted(sockets, 1);
  const frame = await eventually(() => again.last("subscribe"));
  assert.deepEqual([frame.group, "from" in frame], ["g", false]);
});

test("messages that were settled as they were sent are all handled, though they outrun their handler", async (t) => {
  const {log, handler, end} = gate();
  const {socket} = await subscribed(t, {credit: 4}, handler, {limits: {streamBacklogMessages: 3}});
  const burst = (...numbers) => deliver(socket, ...numbers.map((n) => leased(n, {receipt: null})));
  burst(1, 2, 3);
  burst(4, 5);
  const leaving = await eventually(() => socket.last("unsubscribe"));
  burst(6); // was under way
  socket.say({type: "ok", id: leaving.id});
  for (const n of [1, 2, 3, 4, 5]) await end(n);
  assert.equal(socket.frames("subscribe").length, 1);
  await end(6);
  const again = await eventually(() => socket.frames("subscribe")[1]);
  assert.equal("from" in again, false);
  assert.deepEqual(log.filter((entry) => entry.startsWith("+")), ["+1", "+2", "+3", "+4", "+5", "+6"]);
});

test("a stream's time to begin may be a date", async (t) => {
  const {frame} = await subscribed(t, {from: {time: new Date("2026-01-01T00:00:00Z")}}, () => {});
  assert.deepEqual(frame.from, {time: "2026-01-01T00:00:00.000Z"});
});

/** A server of one queue over HTTP: its config, and an event stream that says `text` and stays open. */
function httpServer(config, text) {
  const asked = [];
  const fetch = async (url, {method = "GET", body, signal}) => {
    const {pathname, searchParams} = new URL(url);
    asked.push({method, path: pathname, query: Object.fromEntries(searchParams), body: body && JSON.parse(body)});
    if (/\/n?ack$/.test(pathname)) {
      const results = JSON.parse(body).receipts.map((receipt) => ({receipt, ok: true}));
      return Response.json({results});
    }
    if (!pathname.endsWith("/events")) return Response.json({config, items: []});
    const start = (stream) => {
      stream.enqueue(new TextEncoder().encode(text));
      signal.addEventListener("abort", () => stream.error(signal.reason));
    };
    return new Response(new ReadableStream({start}));
  };
  return {asked, fetch};
}

const asEvent = (message) => `id: c${message.seq}\ndata: ${JSON.stringify(message)}\n\n`;
const events = (...messages) => messages.map(asEvent).join("");

test("over SSE a group has credit and no cursor, and is acked by requests", async (t) => {
  const {asked, fetch} = httpServer({kind: "stream"}, events(leased(1), leased(2)));
  const {pushq} = quickClient(t, {transports: ["sse"], fetch});
  const subscription = pushq.subscribe("q", {group: "g", from: "earliest", credit: 7}, () => {});
  await subscription.ready;
  const acks = () => asked.filter(({path}) => path.endsWith("/ack")).flatMap(({body}) => body.receipts);
  await eventually(() => acks().length === 2);
  const stream = asked.find(({path}) => path.endsWith("/events"));
  assert.deepEqual(stream.query, {credit: "7", group: "g", from: "earliest", attempts: "begun"});
  assert.deepEqual([acks(), subscription.cursor], [["t.1", "t.2"], null]);
});

test("over SSE a message whose text is broken goes back with the reason, and its neighbours are handled", async (t) => {
  const broken = 'id: c2\ndata: {"id":"m2","receipt":"t.2","body":\n\n';
  const {asked, fetch} = httpServer({kind: "work"}, asEvent(leased(1)) + broken + asEvent(leased(3)));
  const {pushq} = quickClient(t, {transports: ["sse"], fetch});
  const problem = event(pushq, "problem");
  const got = [];
  pushq.subscribe("q", {credit: 7}, ({body}) => void got.push(body));
  const {body: back} = await eventually(() => asked.find(({path}) => path.endsWith("/nack")));
  assert.deepEqual(back.receipts, ["t.2"]);
  assert.match(back.reason, /^the consumer cannot decode it: /);
  assert.equal((await problem).error.code, "undecodable");
  await eventually(() => got.length === 2);
  assert.deepEqual(got, [1, 3]);
});

test("over SSE a strict queue is known by its config", async (t) => {
  const {log, handler, end} = gate();
  const {fetch} = httpServer({kind: "work", ordering: "strict"}, events(leased(1, {key: "a"}), leased(2, {key: "a"})));
  const {pushq} = quickClient(t, {transports: ["sse"], fetch});
  pushq.subscribe("q", {credit: 7}, handler);
  await end(1);
  await end(2);
  assert.deepEqual(log, ["+1", "-1", "+2", "-2"]);
});
