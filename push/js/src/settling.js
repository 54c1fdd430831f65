/** From `ack` to its confirmation: receipts of one turn share a frame, and are told again after a cut. */

import {askedMs} from "./backoff.js";
import {PLAIN} from "./delivery.js";
import {LeaseLost, errorOf} from "./errors.js";
import {sleep} from "./timers.js";

/** From a verdict to its confirmation: those of one turn share a frame, and are told again after a cut. */
export class Settler {
  #consumer; #client; #decided = []; #sending = new Set(); #end = null;

  constructor(consumer, client) {
    this.#consumer = consumer;
    this.#client = client;
  }

  /** A verdict, the `fields` that its frame has beside (those with equal ones share it), and whom to tell. */
  add(decision) {
    if (this.#end) return decision.reject(this.#end);
    this.#decided.push(decision);
    this.#client.soon();
  }

  flush(link) {
    const frames = new Map();
    for (const decision of this.#decided.splice(0)) {
      const {verdict, fields} = decision;
      const said = fields === PLAIN ? "" : JSON.stringify(fields);
      const frame = fields.publish ? decision : verdict + said; // a publish is one message's own
      const decisions = frames.get(frame);
      if (decisions) decisions.push(decision);
      else frames.set(frame, [decision]);
    }
    const most = this.#client.limits.settleFrameReceipts;
    for (const decisions of frames.values()) {
      while (decisions.length) this.#send(link, decisions.splice(0, most));
    }
  }

  /** Resolves when the server has answered what was sent. */
  told() {
    return Promise.all(this.#sending);
  }

  abandon(error) {
    this.#end = error;
    this.#decided.splice(0).forEach(({reject}) => reject(error));
  }

  #send(link, decisions) {
    const sending = this.#tell(link, decisions).finally(() => this.#sending.delete(sending));
    this.#sending.add(sending);
  }

  async #tell(link, decisions) {
    const [{verdict, fields}] = decisions;
    const receipts = decisions.map(({delivery}) => delivery.receipt);
    try {
      const {results} = await link.settle(verdict, this.#consumer, receipts, fields);
      this.#answered(decisions, results);
    } catch (error) {
      if (this.#end) return decisions.forEach(({reject}) => reject(this.#end));
      if (!error.retriable) return this.#refused(decisions, error);
      // The receipts stay good: they are told again after the reconnect. Credit bounds how many can wait here.
      decisions.forEach((decision) => (decision.isRepeat = true));
      this.#decided.unshift(...decisions);
      if (error.code === "disconnected") return;
      const waitMs = askedMs(error.retryAfterMs, Math.random(), this.#client.limits);
      sleep(Math.max(waitMs, 100)).then(() => this.#client.soon());
    }
  }

  #answered(decisions, results) {
    const stale = [];
    decisions.forEach((decision, index) => {
      const error = errorOf(results[index]);
      if (!error || (decision.isRepeat && decision.verdict === "nack")) return decision.resolve(); // it had its effect
      if (error.code === "stale-receipt") stale.push(decision);
      else this.#refused([decision], error);
    });
    for (const {delivery, verdict, reject} of stale) {
      reject(new LeaseLost(this.#consumer.queue, verdict, delivery.message));
    }
    this.#consumer.lose(stale.filter(({verdict}) => verdict === "ack").map(({delivery}) => delivery));
  }

  /** Nothing came of it. While its handler runs, the message may have another verdict. */
  #refused(decisions, error) {
    for (const {delivery, reject} of decisions) {
      delivery.verdict = null;
      reject(error);
    }
    if (decisions.some(({delivery}) => delivery.hasEnded)) this.#client.emit("problem", {error});
  }
}
