/** `pushq.d.ts` declares all that is public, and nothing that is not there. */

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";

import * as pushq from "../../push/js/pushq.js";
import * as source from "../../push/js/src/pushq.js";
import {leased, subscribed} from "./fakes.mjs";

const SOURCE = readFileSync(new URL("../../push/js/pushq.js", import.meta.url), "utf8");
const DECLARED = readFileSync(new URL("../../push/js/pushq.d.ts", import.meta.url), "utf8");

const sorted = (names) => [...new Set(names)].sort();
const matches = (text, pattern) => [...text.matchAll(pattern)].map(([, name]) => name);

/** The text between the braces of a declaration whose closing one stands at the margin. */
function declaration(kind, name) {
  const found = new RegExp(`^export ${kind} ${name}\\b[^{]*\\{\\n(.*?)^\\}`, "ms").exec(DECLARED);
  assert.ok(found, `no ${kind} ${name} in pushq.d.ts`);
  return found[1];
}

const members = (text) => sorted(matches(text, /^ {2}(?!static |private |constructor)(?:readonly )?(\w+)[?(<:]/gm));
const statics = (text) => sorted(matches(text, /^ {2}static (\w+)/gm));

/** What a value offers: its fields, and the methods and accessors of its class and of those of ours above it. */
function offered(value) {
  const names = Object.getOwnPropertyNames(value);
  let type = Object.getPrototypeOf(value);
  for (; type !== null && type.constructor !== Object; type = Object.getPrototypeOf(type)) {
    if (![EventTarget, Error].includes(type.constructor)) names.push(...Object.getOwnPropertyNames(type));
  }
  return sorted(names.filter((name) => !["constructor", "stack", "message", "name"].includes(name)));
}

/** The properties of a `@typedef {object} Name` in the module. */
function documented(name) {
  const [, block] = new RegExp(`@typedef \\{object\\} ${name}\\n(.*?)(?:\\n \\*\\n|\\*/)`, "s").exec(SOURCE);
  return sorted(matches(block, /@property \{.*?\} \[?(\w+)\]? ?/g));
}

const problem = new pushq.PushqError("forbidden", "no", {status: 403});
const values = {
  PushqError: problem,
  RequestTimeout: new pushq.RequestTimeout("q", 1, true),
  NoReplyQueue: new pushq.NoReplyQueue("no", problem),
  LeaseLost: new pushq.LeaseLost("q", "ack", {id: "m", attempt: 1}),
  HybridClock: new pushq.HybridClock(),
  EventParser: new pushq.EventParser(),
};

test("everything that is exported is declared, and the other way round", () => {
  const declared = matches(DECLARED, /^export (?:class|function|const) (\w+)/gm);
  assert.deepEqual(sorted(declared), sorted(Object.keys(pushq)));
});

test("the files that the module is made from work as they lie, and export the same", () => {
  assert.deepEqual(Object.keys(source), Object.keys(pushq));
});

for (const [name, value] of Object.entries(values)) {
  test(`${name} offers what is declared`, () => {
    const text = declaration("class", name);
    const own = value instanceof pushq.PushqError ? members(declaration("class", "PushqError")) : [];
    assert.deepEqual(sorted([...own, ...members(text)]), offered(value));
    const given = Object.getOwnPropertyNames(pushq[name]);
    assert.deepEqual(statics(text), sorted(given.filter((each) => !["length", "name", "prototype"].includes(each))));
  });
}

test("a client, its subscriptions and its messages offer what is declared", async (t) => {
  const seen = [];
  const {pushq: client, subscription, socket} = await subscribed(t, {credit: 1}, (message) => void seen.push(message));
  const optional = {body_base64: "AA==", expires_at: "2026-01-01T00:00:00.000Z", reply_to: "r", correlation_id: "c"};
  const dead = {from: "q", reason: "expired", at: "2026-01-01T00:00:00.000Z", attempts: 1, history: []};
  const sorted = {ordering: {timestamp: "2026-01-01T00:00:00.000Z", late: false}, producer: "p", producer_seq: 1};
  const rare = {...sorted, dead_letter: dead};
  const traced = {traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", tracestate: "a=b"};
  socket.say({type: "deliver", sub: 1, messages: [leased(1, {...optional, ...rare, ...traced})]});
  assert.deepEqual(members(declaration("class", "Client")), offered(client));
  assert.deepEqual(members(declaration("class", "Subscription")), offered(subscription));
  assert.deepEqual(members(declaration("class", "Message")), offered(seen[0]));
});

test("options are documented in the module as they are declared", () => {
  for (const name of ["ConnectOptions", "PublishOptions", "SubscribeOptions"]) {
    assert.deepEqual(documented(name), members(declaration("interface", name)), name);
  }
});

test("limits and events are declared one by one", () => {
  assert.deepEqual(members(declaration("interface", "Limits")), sorted(Object.keys(pushq.LIMITS)));
  const sent = matches(SOURCE, /#?emit\("(\w+)"/g);
  assert.deepEqual(members(declaration("interface", "ClientEvents")), sorted(sent));
});

test("an option in camelCase that is declared travels under the wire's name", () => {
  const [, table] = /const WIRE_NAMES = Object\.freeze\(\{\n(.*?)\}\)/s.exec(SOURCE);
  const wired = matches(table, /^ {2}(\w+):/gm);
  const names = ["PublishOptions", "SubscribeOptions", "NackOptions"];
  const camel = names.flatMap((name) => members(declaration("interface", name))).filter((name) => /[A-Z]/.test(name));
  const local = ["maxHandlerMs", "inOrder"];
  assert.deepEqual(sorted(wired), sorted(camel.filter((name) => !local.includes(name))));
});
