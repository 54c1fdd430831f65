/** Which subscription over HTTP keeps a connection, and which take turns at one. */

/**
 * Connections to one host that a page holds open. A browser has six per host over HTTP/1.1, for everything: six open
 * streams would leave none for a publish or an ack. Streams take all but one of ours; subscriptions beyond that poll,
 * and take turns at it.
 */
export class HeldConnections {
  static #hosts = new Map();
  #most; #streams = 0; #polls = 0; #pollers = 0; #waiting = [];

  static to(base, most) {
    if (!HeldConnections.#hosts.has(base)) HeldConnections.#hosts.set(base, new HeldConnections(most));
    return HeldConnections.#hosts.get(base);
  }

  constructor(most) {
    this.#most = most;
  }

  /** A stream's connection, or false: then poll. */
  takeStream() {
    if (this.#streams + this.#polls >= this.#most - 1) return false;
    this.#streams += 1;
    return true;
  }

  giveStream() {
    this.#streams -= 1;
    this.#handOn();
  }

  join() {
    this.#pollers += 1;
  }

  leave() {
    this.#pollers -= 1;
  }

  /** How long a poll may keep its connection. */
  pollMs({pollTurnMs, pollLastMs, pollWaitMs}) {
    const left = this.#most - this.#streams - this.#pollers;
    if (left < 0) return pollTurnMs;
    return left === 0 ? pollLastMs : pollWaitMs;
  }

  /** One poll's connection, first come first served. */
  async takePoll() {
    await new Promise((resolve) => {
      this.#waiting.push(resolve);
      this.#handOn();
    });
  }

  givePoll() {
    this.#polls -= 1;
    this.#handOn();
  }

  #handOn() {
    if (!this.#waiting.length || this.#streams + this.#polls >= this.#most) return;
    this.#polls += 1;
    this.#waiting.shift()();
  }
}
