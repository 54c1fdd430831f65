/** A message in the user's hands: read it, then say what became of it. */

import {decodeBase64} from "./bodies.js";
import {PushqError} from "./errors.js";

/**
 * One delivery of one message, in the hands of a handler. It has the fields of the API's Message as the server sent
 * them: id, seq, body, key, priority, headers, attempt, published_at, ordering?, producer? …; `body` is a Uint8Array where it was
 * not JSON. A handler that returns acks and one that throws nacks, with a delay where the queue has no back-off, unless
 * it called `ack` or `nack` itself. Without a receipt (`ack: "auto"`, a queue that delivers at most once, a stream
 * without a group) they do nothing.
 */
export class Message {
  #delivery;

  constructor(fields, delivery) {
    this.#delivery = delivery;
    for (const name in fields) {
      if (!(name in Message.prototype)) this[name] = fields[name];
    }
    if (typeof fields.body_base64 === "string") this.body = decodeBase64(fields.body_base64);
  }

  /** The queue it was received from. */
  get queue() {
    return this.#delivery.queue;
  }

  get contentType() {
    return this.content_type;
  }

  /** When the server stored it. @returns {Date} */
  get publishedAt() {
    return new Date(this.published_at);
  }

  /** @returns {Date | null} */
  get expiresAt() {
    return this.expires_at ? new Date(this.expires_at) : null;
  }

  get replyTo() {
    return this.reply_to ?? null;
  }

  get correlationId() {
    return this.correlation_id ?? null;
  }

  /** Its producer's own number of it, from 1; null where the publisher gave none. Whose it is says `producer`. */
  get producerSeq() {
    return this.producer_seq ?? null;
  }

  /** Of a dead letter: where it died, why, when, after how many attempts. */
  get deadLetter() {
    return this.dead_letter ?? null;
  }

  /** True when its lease has ended before it was settled: somebody else may have it. */
  get lost() {
    return this.#delivery.isLost;
  }

  /** Aborts when the lease is lost. @returns {AbortSignal} */
  get signal() {
    return this.#delivery.signal;
  }

  /**
   * Done. Resolves when the server has confirmed it; rejects with `LeaseLost`. Messages in `publish` are stored in the
   * same step as the ack, all or nothing, where the queue's `colocate_with` allows.
   * @param {AckOptions} [options] @returns {Promise<void>}
   */
  ack({publish} = {}) {
    return this.#delivery.ack(publish);
  }

  /** Not done: it is delivered again, `delayMs` later. @param {NackOptions} [options] @returns {Promise<void>} */
  nack(options = {}) {
    return this.#delivery.giveBack(options);
  }

  /** Not begun: somebody else may have it, and it was no attempt. @param {{delayMs?: number}} [options] @returns {Promise<void>} */
  release(options = {}) {
    return this.#delivery.giveBack({...options, tried: false});
  }

  /** Holds it for `ms` from now; rejects with `LeaseLost`. Running handlers need not: their leases are extended. */
  extend(ms) {
    return this.#delivery.extend(ms);
  }

  /** Publishes the reply to whoever asked. @param {unknown} body @param {PublishOptions} [options] */
  reply(body, options = {}) {
    const {reply_to, correlation_id, id} = this;
    if (reply_to) return this.#delivery.publish(reply_to, body, {...options, correlationId: correlation_id ?? id});
    return Promise.reject(new PushqError("no-reply-to", `message ${id} has no reply_to`));
  }
}
