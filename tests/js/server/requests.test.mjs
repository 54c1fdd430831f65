/**
 * Requests and replies over the real server.
 *
 * Needs of it: `reply_to` and `correlation_id` (there since the first version); for queues of our own `delivery:
 * at_most_once`, `message_ttl_ms` and `ttl_ms`.
 */

import assert from "node:assert/strict";

import {NoReplyQueue, RequestTimeout} from "../../../push/js/pushq.js";
import {api, client, keyWith, queue, story, until} from "./world.mjs";

/** A service that answers with twice the number. */
function doubling(t, name, answer = (message) => message.reply(message.body * 2)) {
  return client(t).subscribe(name, {credit: 8}, answer);
}

story("requests are answered each with its own reply", async (t) => {
  const name = await queue();
  doubling(t, name);
  const pushq = client(t);
  const replies = await Promise.all(Array.from({length: 20}, (_, n) => pushq.request(name, n, {timeoutMs: 10_000})));
  assert.deepEqual(replies.map(({body}) => body), Array.from({length: 20}, (_, n) => 2 * n));
  const {config} = await api("GET", `/v1/queues/reply.${pushq.producer}`);
  assert.deepEqual([config.delivery, config.message_ttl_ms], ["at_most_once", 60_000]);
});

story("a service that is slower than the time-out answers nobody, and that is counted", async (t) => {
  const name = await queue();
  let finish;
  doubling(t, name, async (message) => {
    await new Promise((resolve) => (finish = resolve));
    await message.reply("too late");
  });
  const pushq = client(t);
  await assert.rejects(pushq.request(name, 1, {timeoutMs: 3_000, ttlMs: 60_000}), RequestTimeout);
  await until(() => finish);
  finish();
  await until(() => pushq.lateReplies === 1);
});

story("a request that nobody took in time is gone", async (t) => {
  const name = await queue();
  const pushq = client(t);
  await assert.rejects(pushq.request(name, "old", {timeoutMs: 3_000}), {isStored: true});
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const seen = [];
  pushq.subscribe(name, {credit: 8}, ({body}) => void seen.push(body));
  await pushq.publish(name, "new");
  await until(() => seen.length >= 1);
  assert.deepEqual(seen, ["new"]);
});

story("a named queue of replies needs no right to make one", async (t) => {
  const [name, replies] = [await queue(), await queue()];
  doubling(t, name);
  const key = await keyWith(`publish:${name}`, `consume:${replies}`);
  const pushq = client(t, {key, replyQueue: replies});
  assert.equal((await pushq.request(name, 21, {timeoutMs: 10_000})).body, 42);
});

story("a key without the right to make a queue of replies is told what it lacks", async (t) => {
  const name = await queue();
  const pushq = client(t, {key: await keyWith(`publish:${name}`)});
  await assert.rejects(pushq.request(name, 1), (error) => {
    assert.ok(error instanceof NoReplyQueue, String(error));
    assert.match(error.message, /manage:reply\.\*/);
    return true;
  });
});

story("several clients may share a stream of replies", async (t) => {
  const [name, replies] = [await queue(), await queue({kind: "stream"})];
  doubling(t, name);
  const clients = [client(t, {replyQueue: replies}), client(t, {replyQueue: replies})];
  const answers = await Promise.all(clients.map((pushq, n) => pushq.request(name, n + 1, {timeoutMs: 10_000})));
  assert.deepEqual(answers.map(({body}) => body), [2, 4]);
  assert.deepEqual(clients.map(({lateReplies}) => lateReplies), [0, 0]);
});
