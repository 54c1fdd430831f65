/** The real server of a test run: `PUSHQ_URL`, `PUSHQ_KEY`, and the transport that the clients use. */

import {test} from "node:test";

import {connect} from "../../../push/js/pushq.js";

const {PUSHQ_URL: url, PUSHQ_KEY: key, PUSHQ_TRANSPORT: transport = "ws"} = process.env;
const prefix = `js-${transport}-${Date.now().toString(36)}`;
const SIDE_BY_SIDE = 8;
const stories = [];
let count = 0;

/** A test. Those of a file wait side by side: each has queues of its own. */
export function story(name, run) {
  if (stories.push([name, run]) === 1) queueMicrotask(() => test("stories", {concurrency: SIDE_BY_SIDE}, runAll));
}

async function runAll(t) {
  await Promise.all(stories.map(([name, run]) => t.test(name, run)));
}

/** One call of the HTTP API, beside the client. */
export async function api(method, path, body) {
  const headers = {authorization: `Bearer ${key}`, "content-type": "application/json"};
  const answer = await fetch(`${url}${path}`, {method, headers, body: body && JSON.stringify(body)});
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

/** Publishes a request as it is written, for what no encoder writes. */
export async function publishText(name, text) {
  const headers = {authorization: `Bearer ${key}`, "content-type": "application/json"};
  const answer = await fetch(`${url}/v1/queues/${name}/messages`, {method: "POST", headers, body: text});
  if (!answer.ok) throw new Error(`publish to ${name}: ${answer.status} ${await answer.text()}`);
}

/** A new queue with this config; its name. */
export async function queue(config = {}) {
  const name = `${prefix}-${(count += 1)}`;
  await api("PUT", `/v1/queues/${name}`, config);
  return name;
}

export async function stats(name) {
  return (await api("GET", `/v1/queues/${name}`)).stats;
}

/** A client that ends with the test. `trace` records the publishes it sends. */
export function client(t, {key: token = key, ...options} = {}) {
  const published = [];
  const trace = (direction, text) => {
    if (direction === "out" && text.includes('"messages":[')) published.push(text);
  };
  const pushq = connect({url, token, transports: [transport], trace, ...options});
  pushq.addEventListener("problem", () => {});
  t.after(() => pushq.close());
  return Object.assign(pushq, {published});
}

/** A key with these scopes alone. */
export async function keyWith(...scopes) {
  return (await api("POST", "/v1/keys", {name: "test", scopes})).key;
}

/** Waits until `find` gives something, ten seconds at most. */
export async function until(find, what = find.toString()) {
  for (let tries = 0; tries < 500; tries += 1) {
    const found = await find();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`did not come: ${what}`);
}
