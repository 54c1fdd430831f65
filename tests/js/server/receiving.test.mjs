/**
 * Receiving from the real server.
 *
 * Needs of it: nack with `delay_ms` and `reason`, `max_attempts`, the `.dead` companion with `dead_letter`;
 * `ordering: strict` (and `ordering` in the answer to a WebSocket's subscribe); groups of a stream; `colocate_with` and
 * `publish` with an ack; `delivery: at_most_once`.
 */

import assert from "node:assert/strict";

import {api, client, publishText, queue, stats, story, until} from "./world.mjs";

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const bodies = (messages) => messages.map(({body}) => body);

story("a body written over several lines comes back as the same value", async (t) => {
  const pushq = client(t);
  const name = await queue();
  const got = [];
  pushq.subscribe(name, {credit: 1}, (message) => void got.push(message));
  for (const end of ["\n", "\r", "\r\n"]) {
    const written = ['{"messages": [{"body": {', '"a": "b\\nc",', "", "", '"id: x": [', "1", "]", "}}]}"].join(end);
    await publishText(name, written);
  }
  await until(() => got.length === 3, "three messages");
  for (const body of bodies(got)) assert.deepEqual(body, {a: "b\nc", "id: x": [1]});
});

story("a nack comes back after its delay", async (t) => {
  const pushq = client(t);
  const name = await queue();
  const times = [];
  pushq.subscribe(name, {credit: 1}, async (message) => {
    times.push(Date.now());
    if (message.attempt === 1) await message.nack({delayMs: 400, reason: "not yet"});
  });
  await pushq.publish(name, 1);
  await until(() => times.length === 2);
  assert.ok(times[1] - times[0] >= 395, `${times[1] - times[0]} ms`);
  await until(async () => (await stats(name)).acked_total === 1);
});

story("after its last attempt a message is a dead letter, with cause and history", async (t) => {
  const pushq = client(t);
  const name = await queue({max_attempts: 2});
  pushq.subscribe(name, {credit: 1}, (message) => message.nack({reason: `attempt ${message.attempt} of a test`}));
  await pushq.publish(name, {order: 7}, {key: "k"});
  const dead = [];
  await until(async () => (await stats(name)).dead === 1, "the dead letter");
  pushq.subscribe(`${name}.dead`, {credit: 1}, (message) => void dead.push(message));
  const {body, key, deadLetter} = await until(() => dead[0]);
  assert.deepEqual([body, key], [{order: 7}, "k"]);
  assert.deepEqual([deadLetter.from, deadLetter.reason, deadLetter.attempts], [name, "max_attempts", 2]);
  assert.match(JSON.stringify(deadLetter.history), /attempt 2 of a test/);
});

story("on a strict queue each key stays in order, even when a handler fails", async (t) => {
  const pushq = client(t);
  const name = await queue({ordering: "strict"});
  const done = {a: [], b: []};
  const running = new Set();
  const failed = new Set();
  pushq.subscribe(name, {credit: 16}, async ({body, key}) => {
    assert.ok(!running.has(key), `two of ${key} at once`);
    running.add(key);
    await new Promise((resolve) => setTimeout(resolve, 5));
    running.delete(key);
    if (body % 5 === 3 && !failed.has(key + body)) {
      failed.add(key + body);
      throw new Error("once");
    }
    done[key].push(body);
  });
  const numbers = Array.from({length: 20}, (_, n) => n);
  await pushq.publishMany(name, numbers.flatMap((body) => ["a", "b"].map((key) => ({body, key}))));
  await until(() => done.a.length + done.b.length >= 40);
  assert.deepEqual(done, {a: numbers, b: numbers});
});

story("members of a group share a stream, and a later one goes on where they acked", async (t) => {
  const name = await queue({kind: "stream"});
  const first = client(t);
  const seen = [];
  const options = {group: "g", from: "earliest", credit: 8};
  const subscription = first.subscribe(name, options, ({body}) => void seen.push(body));
  await subscription.ready;
  await first.publishMany(name, Array.from({length: 30}, (_, body) => ({body})));
  await until(() => seen.length >= 30);
  await subscription.close();
  const second = client(t);
  const later = [];
  second.subscribe(name, {group: "g", credit: 8}, ({body, receipt}) => void later.push([body, Boolean(receipt)]));
  await second.publish(name, "after");
  await until(() => later.length >= 1);
  assert.deepEqual(seen, Array.from({length: 30}, (_, n) => n));
  assert.deepEqual(later, [["after", true]]);
});

story("a handler that fails in a group gets its message again before the next one", async (t) => {
  const name = await queue({kind: "stream"});
  const pushq = client(t);
  const seen = [];
  const subscription = pushq.subscribe(name, {group: "g", from: "earliest", credit: 8}, ({body}) => {
    seen.push(body);
    if (body === 1 && seen.filter((n) => n === 1).length === 1) throw new Error("once");
  });
  await subscription.ready;
  await pushq.publishMany(name, [0, 1, 2, 3].map((body) => ({body})));
  await until(() => seen.includes(3));
  assert.deepEqual(seen, [0, 1, 1, 2, 3]);
});

story("an ack and its publish are one step between colocated queues", async (t) => {
  const bills = await queue();
  const orders = await queue({colocate_with: bills});
  const pushq = client(t);
  pushq.subscribe(orders, {credit: 1}, async (message) => {
    await message.ack({publish: [{queue: bills, messages: [{body: {bill: message.body}, key: "k"}]}]});
  });
  await pushq.publish(orders, 7);
  const seen = [];
  pushq.subscribe(bills, {credit: 1}, (message) => void seen.push(message));
  await until(() => seen.length === 1);
  assert.deepEqual([seen[0].body, seen[0].key], [{bill: 7}, "k"]);
  const {acked_total: acked, ready} = await stats(orders);
  assert.deepEqual([acked, ready], [1, 0]);
});

story("between queues that are not colocated the step is refused, and the message stays open", async (t) => {
  const [orders, bills] = [await queue(), await queue()];
  const pushq = client(t);
  const codes = [];
  pushq.subscribe(orders, {credit: 1}, async (message) => {
    await message.ack({publish: [{queue: bills, messages: [{body: 1}]}]}).catch(({code}) => codes.push(code));
    await message.ack();
  });
  await pushq.publish(orders, 7);
  await until(async () => (await stats(orders)).acked_total === 1);
  assert.deepEqual([codes.length, (await stats(bills)).ready], [1, 0]);
});

story("a queue that delivers at most once has no receipts, and is not held back by their want", async (t) => {
  const name = await queue({delivery: "at_most_once"});
  const pushq = client(t);
  const seen = [];
  const subscription = pushq.subscribe(name, {credit: 4}, (message) => void seen.push(message));
  await subscription.ready;
  await pushq.publishMany(name, Array.from({length: 40}, (_, body) => ({body})));
  await until(() => seen.length === 40);
  assert.deepEqual(bodies(seen).sort((a, b) => a - b), Array.from({length: 40}, (_, n) => n));
  assert.ok(seen.every(({receipt}) => receipt === null));
  assert.equal((await stats(name)).in_flight, 0);
});

story("a lease lasts as long as the consumer asks, over every transport", async (t) => {
  const pushq = client(t);
  const name = await queue({visibility_timeout_ms: 1000});
  const attempts = [];
  const subscription = pushq.subscribe(name, {visibilityTimeoutMs: 20_000}, async ({attempt}) => {
    attempts.push(attempt);
    await sleep(2500);
  });
  await pushq.publish(name, "slow");
  await until(async () => (await stats(name)).acked_total === 1);
  assert.deepEqual(attempts, [1]);
  assert.equal(subscription.visibilityMs, 20_000);
});

story("what waits behind a handler that hangs goes to others, untried", async (t) => {
  const pushq = client(t, {limits: {closeMs: 100}});
  const name = await queue({ordering: "strict", visibility_timeout_ms: 800, max_attempts: 2});
  const handled = [];
  pushq.subscribe(name, {maxHandlerMs: 1000, credit: 10}, ({body}) => {
    handled.push(body);
    return new Promise(() => {});
  });
  await pushq.publishMany(name, ["hangs", "waits"].map((body) => ({body, key: "k"})));
  await until(() => handled.length);
  await sleep(4000); // three leases, if they ran out
  const seen = [];
  const other = client(t).subscribe(name, {credit: 10}, ({body, attempt}) => void seen.push([body, attempt]));
  await until(() => seen.length === 2);
  await other.close();
  assert.deepEqual([handled, seen, (await stats(name)).dead], [["hangs"], [["hangs", 2], ["waits", 1]], 0]);
});

story("what comes while a subscription is closed goes back at once, untried", async (t) => {
  const pushq = client(t);
  const name = await queue();
  let done;
  const subscription = pushq.subscribe(name, {credit: 10}, () => new Promise((resolve) => (done = resolve)));
  await pushq.publish(name, "first");
  await until(() => done);
  await sleep(300); // a poll is out
  const closing = subscription.close();
  await api("POST", `/v1/queues/${name}/messages`, {messages: [{body: "second"}]});
  await sleep(300);
  done();
  await closing;
  const {messages} = await api("POST", `/v1/queues/${name}/receive`, {max: 10, wait_ms: 8000});
  assert.deepEqual(messages.map(({body}) => body), ["second"]);
  if (pushq.transport !== "sse") assert.equal(messages[0].attempt, 1);
});
