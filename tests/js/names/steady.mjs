/** Publishes and consumes until its stdin ends, and says what it knows, a line of JSON at a time: URL QUEUE TRANSPORT. */

import {connect} from "../../../push/js/pushq.js";

const [url, queue, transport] = process.argv.slice(2);
const limits = {openMs: 2_000, requestMs: 3_000}; // how long an address may be silent
const say = (event, facts = {}) => console.log(JSON.stringify({event, ...facts}));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let isOver = false;
process.stdin.on("end", () => (isOver = true)).resume();

const pushq = connect({url, token: process.env.PUSHQ_KEY, transports: [transport], limits});
pushq.addEventListener("problem", () => {});
pushq.addEventListener("state", ({detail: {state, error}}) => say(state, {reason: error?.message}));

const missing = new Set();
const delivered = new Set();
pushq.subscribe(queue, {credit: 20}, async (message) => {
  say("delivered", {n: message.body, attempt: message.attempt});
  delivered.add(message.body);
  missing.delete(message.body);
  await message.ack();
  say("acked", {n: message.body});
});

let n = 0;
for (; !isOver; n += 1) {
  try {
    await pushq.publish(queue, n, {id: `m-${n}`});
    say("published", {n});
    if (!delivered.has(n)) missing.add(n);
  } catch (error) {
    say("refused", {n, error: error.message});
  }
  await sleep(20);
}
for (let tries = 0; missing.size && tries < 1_000; tries += 1) await sleep(20);
await pushq.close();
say("done", {published: n});
