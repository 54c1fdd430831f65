/** Which of the messages that wait may begin: side by side, or one after the other where their order counts. */

import {steadyMs} from "./timers.js";

const EVERYTHING = Symbol("one line for all messages");
const SIDE_BY_SIDE = Symbol("no line");

/**
 * A line is what must not overtake: the messages of one key, or all of them. Its next message begins when the handler
 * of the one before is done; what is behind one that comes again goes back with it.
 */
export class Lines {
  #consumer; #lines = new Map(); // what waits in each
  /** Of those of one key, of all, or of none. @type {"key" | boolean} */ inOrder = false;

  /** `consumer`: what it does with a message, or with several: `run`, `drop`, `giveBack`; `done`: a line has ended. */
  constructor(consumer) {
    this.#consumer = consumer;
  }

  /** Runs it, at once or when its line has come to it. */
  admit(delivery) {
    const line = this.#lineOf(delivery.message);
    if (line === SIDE_BY_SIDE) return void this.#consumer.run(delivery);
    if (this.#lines.has(line)) return void this.#lines.get(line).push(delivery);
    this.#lines.set(line, [delivery]);
    this.#follow(line);
  }

  /** Gives back what waits. */
  clear() {
    this.#lines.forEach((waiting) => this.#consumer.giveBack(waiting.splice(0)));
  }

  /** Of what waits behind a handler that hangs the lease would run out, and that is an attempt that nobody made. */
  giveBackStuck(now, maxHandlerMs) {
    for (const waiting of this.#lines.values()) {
      const stuck = waiting.filter(({begunAt}) => now - begunAt >= maxHandlerMs);
      if (!stuck.length) continue;
      waiting.splice(0, waiting.length, ...waiting.filter((delivery) => !stuck.includes(delivery)));
      this.#consumer.giveBack(stuck);
    }
  }

  /** Without a key, a strict queue is in one order as a whole. */
  #lineOf({key}) {
    if (this.inOrder === "key") return key ?? EVERYTHING;
    return this.inOrder ? EVERYTHING : SIDE_BY_SIDE;
  }

  /** What is behind a message that failed would else overtake it. */
  async #follow(line) {
    const waiting = this.#lines.get(line);
    while (waiting.length) {
      waiting.forEach((delivery) => (delivery.begunAt = steadyMs())); // as long as the line moves, all of it is in work
      const delivery = waiting.shift();
      if (delivery.isLost) this.#consumer.drop(delivery);
      else await this.#consumer.run(delivery);
      if (delivery.isLost || delivery.verdict === "nack") this.#consumer.giveBack(waiting.splice(0), delivery);
    }
    this.#lines.delete(line);
    this.#consumer.done();
  }
}
