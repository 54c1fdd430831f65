/** Behind a message: one delivery of it, from the frame that brought it to the verdict about it. */

import {refuseHalves} from "./bodies.js";
import {REASON_CHARS_MAX} from "./config.js";
import {PushqError} from "./errors.js";
import {Message} from "./message.js";
import {toWire} from "./outgoing.js";

export const PLAIN = Object.freeze({}); // a verdict that says no more

/** One message that is held here: its receipt, how long yet, what was decided about it. The first verdict counts. */
export class Delivery {
  #consumer; #abort = null; #told = null;
  isLost = false; hasBegun = false; hasEnded = false; // its lease; its handler
  isInDoubt = false; // its session is gone, and its lease may be
  /** @type {"ack" | "nack" | null} */ verdict = null;
  /** Asked for with a nack. @type {number | undefined} */ delayMs;

  constructor(fields, consumer, now) {
    this.#consumer = consumer;
    this.receipt = fields.receipt ?? null;
    this.begunAt = now;
    this.extendAt = now + consumer.visibilityMs / 2;
    this.message = new Message(fields, this);
  }

  get queue() {
    return this.#consumer.queue;
  }

  get signal() {
    this.#abort ??= new AbortController();
    return this.#abort.signal;
  }

  lose() {
    this.isLost = true;
    this.signal; // an abort that nobody asked for yet is there when somebody does
    this.#abort.abort(new PushqError("stale-receipt", "the lease was lost"));
  }

  ack(publish) {
    if (publish === undefined) return this.settle("ack");
    if (!this.receipt) {
      const detail = `message ${this.message.id} has no receipt, so an ack cannot publish`;
      return Promise.reject(new PushqError("invalid-request", detail));
    }
    try {
      return this.settle("ack", {publish: this.#consumer.attached(publish)});
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Rejects what no frame can say: the verdicts of a turn leave together. */
  giveBack(options) {
    try {
      const fields = toWire(options);
      refuseHalves(JSON.stringify(fields));
      return this.settle("nack", fields);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  settle(verdict, fields = PLAIN) {
    if (!this.receipt) return Promise.resolve();
    if (this.verdict === verdict && !Object.keys(fields).length) return this.#told ?? Promise.resolve();
    if (this.verdict) {
      const detail = `message ${this.message.id}: ${verdict} after ${this.verdict}; the first verdict counts`;
      return Promise.reject(new PushqError("already-settled", detail));
    }
    this.delayMs = fields.delay_ms;
    this.#told = new Promise((resolve, reject) => this.conclude(verdict, fields, resolve, reject));
    this.#told.catch(() => {}); // told by events too, so a caller need not wait
    return this.#told;
  }

  /** The verdict that nobody waits for, unless somebody says what to call. */
  conclude(verdict, fields = PLAIN, resolve = ignore, reject = ignore) {
    this.verdict = verdict;
    this.#consumer.settle({delivery: this, verdict, fields, isRepeat: false, resolve, reject});
  }

  /** Its handler threw `error`: again after `delayMs`, or where that is 0 as the queue says. */
  fail(delayMs, error) {
    this.delayMs = delayMs || undefined;
    const reason = reasonOf(error);
    this.conclude("nack", delayMs ? {delay_ms: delayMs, reason} : {reason});
  }

  extend(ms) {
    if (!this.receipt) return Promise.resolve();
    const told = this.#consumer.lengthen(this, ms);
    told.catch(() => {});
    return told;
  }

  publish(...message) {
    return this.#consumer.publish(...message);
  }
}

/** What a handler threw, as a nack may carry it: no longer, and without halves of characters. */
function reasonOf(error) {
  let text;
  try {
    text = String(error); // of an Error: its name and its message
  } catch {
    text = "its message is not available";
  }
  return [...text].slice(0, REASON_CHARS_MAX).join("").replace(/\p{Surrogate}/gu, "\ufffd");
}

function ignore() {}
