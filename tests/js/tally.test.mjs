/** The demo's counters: what is missing cannot hide behind a duplicate. */

import assert from "node:assert/strict";
import {test} from "node:test";

import {Tally} from "../../web_console/static/demo/tally.js";

test("a duplicate does not make up for a missing message", () => {
  const tally = new Tally(10);
  for (const n of [0, 1, 2]) tally.confirm(n, 0);
  for (const [n, attempt] of [[0, 1], [0, 2], [2, 1]]) tally.receive(n, attempt);
  assert.deepEqual([tally.sent, tally.received, tally.duplicate, tally.redelivered], [3, 2, 1, 1]);
  assert.equal(tally.unreceived(3), 1);
});

test("what was received and never confirmed is no duplicate and not missing", () => {
  const tally = new Tally(10);
  tally.receive(0, 1);
  assert.deepEqual([tally.sent, tally.received, tally.duplicate, tally.unreceived(1)], [0, 1, 0, 0]);
});

test("only what was confirmed before the given time counts as overdue", () => {
  const tally = new Tally(10);
  tally.confirm(0, 1_000);
  tally.confirm(1, 9_000);
  assert.equal(tally.unreceived(2, 5_000), 1);
  assert.equal(tally.unreceived(2), 2);
  tally.receive(0, 1);
  assert.equal(tally.unreceived(2, 5_000), 0);
});
