/** Numbers, stamps and ids: what a message that leaves gets by itself, and keeps. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {HybridClock, connect} from "../../push/js/pushq.js";
import {accepted, aMoment, confirm, eventually, leased, quickClient, refuse, subscribed} from "./fakes.mjs";

const US = Date.UTC(2026, 0, 1) * 1000;
const MS = US / 1000;

// The clock

test("stamps rise within a millisecond, and run over into the next after a thousand", () => {
  const clock = new HybridClock();
  const stamps = Array.from({length: 1002}, () => clock.tick(MS));
  assert.deepEqual([stamps[0], stamps[1], stamps[999], stamps[1000]], [US, US + 1, US + 999, US + 1000]);
  assert.equal(clock.tick(MS + 1), US + 1002, "still after the last");
  assert.equal(clock.tick(MS + 5), US + 5_000);
});

test("a local clock that jumps back does not turn stamps back", () => {
  const clock = new HybridClock();
  const before = clock.tick(MS);
  assert.equal(clock.tick(MS - 3_600_000), before + 1);
  assert.equal(clock.tick(MS + 1), US + 1_000);
});

test("what was seen comes before what is stamped next, unless it is too far ahead to be true", () => {
  const clock = new HybridClock(500);
  assert.equal(clock.merge(US + 400_000, MS), true);
  assert.equal(clock.tick(MS), US + 400_001);
  assert.equal(clock.merge(US + 600_000, MS), false);
  assert.equal(clock.merge(NaN, MS), false);
  assert.equal(clock.tick(MS), US + 400_002);
});

test("a stamp is RFC 3339 with three digits for a whole millisecond and six for a later one in it", () => {
  assert.equal(HybridClock.format(US + 123_000), "2026-01-01T00:00:00.123Z");
  assert.equal(HybridClock.format(US + 123_007), "2026-01-01T00:00:00.123007Z");
  for (const stamp of [US, US + 1, US + 999_999, US + 123_000]) {
    assert.equal(HybridClock.parse(HybridClock.format(stamp)), stamp);
  }
});

test("stamps are read with any fraction and any zone, and what is no time is NaN", () => {
  assert.equal(HybridClock.parse("2026-01-01T00:00:00Z"), US);
  assert.equal(HybridClock.parse("2026-01-01T01:00:00.5+01:00"), US + 500_000);
  assert.equal(HybridClock.parse("2026-01-01T00:00:00.123456789Z"), US + 123_456);
  for (const text of ["", "soon", "2026-01-01T00:00:00", undefined]) assert.ok(Number.isNaN(HybridClock.parse(text)));
});

// What a message gets

test("messages are numbered from 1 for each queue, stamped, and get an id", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promises = [pushq.publish("a", 1), pushq.publish("b", 1), pushq.publish("a", 2)];
  const socket = await accepted(sockets);
  await eventually(() => socket.frames("publish").length === 2);
  const [a, b] = socket.frames("publish");
  assert.deepEqual(a.messages.map(({producer_seq}) => producer_seq), [1, 2]);
  assert.deepEqual(b.messages.map(({producer_seq}) => producer_seq), [1]);
  assert.match(pushq.producer, /^[0-9a-f]{24}$/);
  for (const {producer, timestamp, id} of [...a.messages, ...b.messages]) {
    assert.equal(producer, pushq.producer);
    assert.ok(Math.abs(HybridClock.parse(timestamp) / 1000 - Date.now()) < 5_000, timestamp);
    assert.match(id, /^[0-9a-f]{32}$/);
  }
  assert.ok(a.messages[0].timestamp !== a.messages[1].timestamp);
  confirm(socket, a, {sequencing: "producer", dedupe: "id"});
  confirm(socket, b, {sequencing: "clock", dedupe: "content"});
  await Promise.all(promises);
  assert.deepEqual(pushq.nextNumbers, {a: 3, b: 2});
});

test("a message that is sent again keeps number, stamp and id", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promise = pushq.publish("q", "a");
  const socket = await accepted(sockets);
  const first = await eventually(() => socket.last("publish"));
  socket.end(1006);
  const later = pushq.publish("q", "b");
  const again = await accepted(sockets, 1);
  const frame = await eventually(() => again.last("publish"));
  assert.deepEqual(frame.messages[0], first.messages[0]);
  assert.equal(frame.messages[1].producer_seq, 2);
  confirm(again, frame);
  await Promise.all([promise, later]);
});

test("a queue that sorts by arrival is sent no numbers, one that keeps duplicates no made-up ids", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const socket = await accepted(sockets);
  const publish = async (more) => {
    const count = socket.frames("publish").length;
    const promise = pushq.publish("q", "x");
    const frame = await eventually(() => socket.frames("publish")[count]);
    confirm(socket, frame, more);
    await promise;
    return Object.keys(frame.messages[0]).sort();
  };
  const everything = ["body", "id", "producer", "producer_seq", "timestamp"];
  assert.deepEqual(await publish({}), everything, "unknown");
  assert.deepEqual(await publish({sequencing: "arrival", dedupe: "none"}), everything, "the last answer said nothing");
  assert.deepEqual(await publish({sequencing: "arrival", dedupe: "id"}), ["body"]);
  assert.deepEqual(await publish({sequencing: "producer", dedupe: "none"}), ["body", "id"]);
  const ordered = ["body", "producer", "producer_seq", "timestamp"];
  assert.deepEqual(await publish({sequencing: "producer", dedupe: "id"}), ordered);
  assert.deepEqual(await publish({}), everything);
});

test("options ask for ids and numbers everywhere, or for no ids", async (t) => {
  for (const [options, names] of [
    [{publishIds: true, numberAlways: true}, ["body", "id", "producer", "producer_seq", "timestamp"]],
    [{publishIds: false}, ["body"]],
  ]) {
    const {pushq, sockets} = quickClient(t, options);
    const socket = await accepted(sockets);
    for (const at of [0, 1]) {
      const promise = pushq.publish("q", 1);
      const frame = await eventually(() => socket.frames("publish")[at]);
      confirm(socket, frame, {sequencing: "arrival", dedupe: "none"});
      await promise;
      if (at) assert.deepEqual(Object.keys(frame.messages[0]).sort(), names);
    }
  }
});

test("what a message brings itself is left as it is", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const own = {id: "mine", producer: "me", producerSeq: 7, timestamp: new Date("2026-01-01T00:00:00Z")};
  const promise = pushq.publish("q", 1, own);
  const other = pushq.publish("q", 2);
  const socket = await accepted(sockets);
  const frame = await eventually(() => socket.last("publish"));
  const {id, producer, producer_seq, timestamp} = frame.messages[0];
  assert.deepEqual([id, producer, producer_seq, timestamp], ["mine", "me", 7, "2026-01-01T00:00:00.000Z"]);
  assert.equal(frame.messages[1].producer_seq, 1);
  confirm(socket, frame);
  await Promise.all([promise, other]);
});

test("a known producer goes on where it stopped, for all queues or for each", async (t) => {
  const {pushq, sockets} = quickClient(t, {producer: "till-3", firstNumber: {a: 41}});
  const promises = [pushq.publish("a", 1), pushq.publish("b", 1)];
  const socket = await accepted(sockets);
  await eventually(() => socket.frames("publish").length === 2);
  const numbers = socket.frames("publish").map(({messages: [{producer, producer_seq}]}) => [producer, producer_seq]);
  assert.deepEqual(numbers, [["till-3", 41], ["till-3", 1]]);
  socket.frames("publish").forEach((frame) => confirm(socket, frame, {sequencing: "producer"}));
  await Promise.all(promises);
  assert.deepEqual(pushq.nextNumbers, {a: 42, b: 2});
  assert.throws(() => connect({firstNumber: 0}), /firstNumber/);
  assert.throws(() => connect({firstNumber: {a: 1.5}}), /1.5/);
});

test("a message that never left has no number: the next one makes no gap", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishTimeoutMs: 60}});
  await assert.rejects(pushq.publish("q", "given up"), {code: "timeout"});
  const socket = await accepted(sockets);
  const promise = pushq.publish("q", "sent");
  const frame = await eventually(() => socket.last("publish"));
  assert.equal(frame.messages[0].producer_seq, 1);
  confirm(socket, frame);
  await promise;
});

test("a refused message gives its number to the next, and its neighbours close up", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promises = [0, 1, 2].map((n) => pushq.publish("q", n));
  const socket = await accepted(sockets);
  const errors = [{pointer: "/messages/1/priority", detail: "no"}];
  refuse(socket, await eventually(() => socket.last("publish")), {errors});
  await assert.rejects(promises[1]);
  const again = await eventually(() => socket.frames("publish")[1]);
  assert.deepEqual(again.messages.map(({body, producer_seq}) => [body, producer_seq]), [[0, 1], [2, 2]]);
  confirm(socket, again);
  await Promise.all([promises[0], promises[2]]);
});

test("a number is not given twice while a later one is out, or when nobody knows what became of it", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {publishFrameMessages: 1}});
  const [first, second] = [pushq.publish("q", "a"), pushq.publish("q", "b")];
  const socket = await accepted(sockets);
  await eventually(() => socket.frames("publish").length === 2);
  const [a, b] = socket.frames("publish");
  refuse(socket, a, {});
  await assert.rejects(first);
  confirm(socket, b);
  await second;
  const third = pushq.publish("q", "c");
  const c = await eventually(() => socket.frames("publish")[2]);
  assert.equal(c.messages[0].producer_seq, 3);
  refuse(socket, c, {code: "internal", status: 500});
  await assert.rejects(third, {code: "internal"});
  const fourth = pushq.publish("q", "d");
  const d = await eventually(() => socket.frames("publish")[3]);
  assert.equal(d.messages[0].producer_seq, 4);
  confirm(socket, d);
  await fourth;
});

test("a number that a cut left open stays used, whatever is said of its message later", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const first = pushq.publish("q", "a");
  const socket = await accepted(sockets);
  await eventually(() => socket.last("publish"));
  socket.end(1006);
  const again = await accepted(sockets, 1);
  refuse(again, await eventually(() => again.last("publish")), {});
  await assert.rejects(first);
  const second = pushq.publish("q", "b");
  const frame = await eventually(() => again.frames("publish")[1]);
  assert.equal(frame.messages[0].producer_seq, 2);
  confirm(again, frame);
  await second;
});

test("a server that does not know the numbers yet gets the message without them", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const promise = pushq.publish("q", 1);
  const socket = await accepted(sockets);
  const own = ["producer", "producer_seq", "timestamp"];
  const errors = own.map((name) => ({pointer: `/messages/0/${name}`, detail: "no"}));
  refuse(socket, await eventually(() => socket.last("publish")), {errors});
  const again = await eventually(() => socket.frames("publish")[1]);
  assert.deepEqual(Object.keys(again.messages[0]).sort(), ["body", "id"]);
  confirm(socket, again);
  await promise;
});

test("a queue that wants numbers from now on gets them with the next sending", async (t) => {
  const {pushq, sockets} = quickClient(t);
  const first = pushq.publish("q", 1);
  const socket = await accepted(sockets);
  confirm(socket, await eventually(() => socket.last("publish")), {sequencing: "arrival", dedupe: "none"});
  await first;
  const second = pushq.publish("q", 2);
  const bare = await eventually(() => socket.frames("publish")[1]);
  assert.equal("producer" in bare.messages[0], false);
  const errors = [{pointer: "/messages/0/producer", detail: "this queue is ordered by producer"}];
  refuse(socket, bare, {errors});
  const again = await eventually(() => socket.frames("publish")[2]);
  assert.equal(again.messages[0].producer, pushq.producer);
  refuse(socket, again, {errors}); // each message changes its form once
  await assert.rejects(second, {code: "invalid-request"});
});

test("queues beyond the bound are forgotten in a way that gives no number twice", async (t) => {
  const {pushq, sockets} = quickClient(t, {limits: {queuesRemembered: 2}});
  const socket = await accepted(sockets);
  const numbers = [];
  for (const queue of ["a", "a", "b", "c", "a", "d"]) {
    const promise = pushq.publish(queue, 1);
    const frame = await eventually(() => socket.frames("publish")[numbers.length]);
    numbers.push([queue, frame.messages[0].producer_seq]);
    confirm(socket, frame, {sequencing: "producer"});
    await promise;
  }
  assert.deepEqual(numbers, [["a", 1], ["a", 2], ["b", 1], ["c", 1], ["a", 3], ["d", 3]]);
});

test("stamps of delivered messages move the clock, so an answer is later than what it answers", async (t) => {
  const {pushq, socket} = await subscribed(t, {}, () => {});
  const ahead = (ms) => HybridClock.format((Date.now() + ms) * 1000 + 7);
  const [seen, absurd] = [ahead(400), ahead(3_600_000)];
  const stamped = (n, timestamp) => leased(n, {ordering: {timestamp, late: false}});
  socket.say({type: "deliver", sub: 1, messages: [stamped(1, seen), stamped(2, absurd), leased(3)]});
  await aMoment(5);
  const promise = pushq.publish("answers", 1);
  const frame = await eventually(() => socket.last("publish"));
  const {timestamp} = frame.messages[0];
  assert.ok(HybridClock.parse(timestamp) > HybridClock.parse(seen));
  assert.ok(HybridClock.parse(timestamp) < HybridClock.parse(absurd));
  confirm(socket, frame);
  await promise;
});
