/**
 * Publishes five orders and handles them: one is refused once and comes back with attempt 2.
 *
 *     PUSHQ_KEY=$(cat pushq-data/admin.key) node push/js/example.mjs [ws|sse|poll]
 *
 * Without a transport it takes the best that this Node has: 22 and later bring WebSocket, 20 uses SSE.
 */

import {connect} from "./pushq.js";

const url = process.env.PUSHQ_URL ?? "http://127.0.0.1:8080";
const key = process.env.PUSHQ_KEY;
const queue = process.env.PUSHQ_QUEUE ?? "orders";
const transports = process.argv.length > 2 ? process.argv.slice(2) : undefined;

const headers = {authorization: `Bearer ${key}`, "content-type": "application/json"};
const created = await fetch(`${url}/v1/queues/${queue}`, {method: "PUT", headers, body: "{}"});
if (!created.ok) throw new Error(`queue ${queue}: ${(await created.json()).detail}`);

const pushq = connect({url, token: async () => key, transports});
pushq.addEventListener("problem", ({detail}) => console.log(`problem: ${detail.error.message}`));

const messages = [1, 2, 3, 4, 5].map((order) => ({body: {order}, headers: {shop: "example"}}));
const orders = await pushq.publishMany(queue, messages);
console.log(`stored: ${orders.map(({seq}) => seq).join(" ")} over ${pushq.transport}`);

await new Promise((resolve) => {
  const done = new Set();
  pushq.subscribe(queue, {credit: 2}, async ({body: {order}, attempt}) => {
    console.log(`order ${order}, attempt ${attempt}`);
    if (order === 3 && attempt === 1) throw new Error("order 3 is not ready yet");
    done.add(order);
    if (done.size === orders.length) resolve();
  });
});

await pushq.close(); // waits for the last acks
console.log("all orders are done");
