/** A subscription in the user's hands: what it has, when it is there, and when it is over. */

/** What `subscribe` gives its caller. */
export class Subscription {
  #consumer;

  constructor(consumer) {
    this.#consumer = consumer;
  }

  get queue() {
    return this.#consumer.queue;
  }

  get credit() {
    return this.#consumer.credit;
  }

  /** How long a lease is; the queue's, unless the caller asked for another. */
  get visibilityMs() {
    return this.#consumer.visibilityMs;
  }

  /** Of a stream's last message taken in: give it to `from` to go on in another page. @returns {string | null} */
  get cursor() {
    return this.#consumer.cursor;
  }

  /** Resolves when the server has the subscription; rejects when it refuses. @returns {Promise<void>} */
  get ready() {
    return this.#consumer.ready;
  }

  /** Resolves when it is over, with the error that ended it. @returns {Promise<PushqError | null>} */
  get closed() {
    return this.#consumer.closed;
  }

  /** Starts no more handlers, lets the running ones finish, settles, leaves. */
  close() {
    return this.#consumer.close();
  }
}
