/** Counts numbered messages from confirmation to arrival, so that every lost one shows. Uses neither page nor clock. */

const CONFIRMED = 1;
const RECEIVED = 2;

export class Tally {
  sent = 0;
  received = 0;
  duplicate = 0;
  redelivered = 0;
  #marks;
  #confirmedAt;
  #oldest = 0; // all messages below it are confirmed and received

  /** @param {number} messagesMax numbers are 0 … messagesMax − 1 */
  constructor(messagesMax) {
    this.#marks = new Uint8Array(messagesMax);
    this.#confirmedAt = new Float64Array(messagesMax);
  }

  confirm(n, now) {
    if (this.#marks[n] & CONFIRMED) return;
    this.#marks[n] |= CONFIRMED;
    this.#confirmedAt[n] = now;
    this.sent += 1;
  }

  receive(n, attempt) {
    if (attempt > 1) this.redelivered += 1;
    if (this.#marks[n] & RECEIVED) {
      this.duplicate += 1;
      return;
    }
    this.#marks[n] |= RECEIVED;
    this.received += 1;
  }

  /** How many of the first `count` messages were confirmed before `until`, but not received. */
  unreceived(count, until = Infinity) {
    while (this.#oldest < count && this.#marks[this.#oldest] === (CONFIRMED | RECEIVED)) this.#oldest += 1;
    let missing = 0;
    for (let n = this.#oldest; n < count; n += 1) {
      if (this.#marks[n] === CONFIRMED && this.#confirmedAt[n] <= until) missing += 1;
    }
    return missing;
  }
}
