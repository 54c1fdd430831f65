/** Request and reply: a request names the queue for its answer, and the answer finds its asker by correlation id. */

import {askedMs} from "./backoff.js";
import {TIMER_MS_MAX} from "./config.js";
import {NoReplyQueue, PushqError, RequestTimeout} from "./errors.js";
import {randomHex} from "./ids.js";
import {sleep, steadyMs} from "./timers.js";

const QUEUE_PART = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/; // what may stand in the name of a queue

/** Who waits for which reply. A request is a message that names a queue and an id; the reply comes there, with it. */
export class Requests {
  #limits; #given; #own; #client; #prefix = randomHex(12); #count = 0;
  #waiting = new Map(); #inboxes = new Map(); // by correlation id; queues of replies, by name
  late = 0;

  constructor(limits, producer, replyQueue, client) {
    this.#limits = limits;
    this.#given = replyQueue;
    this.#own = `reply.${QUEUE_PART.test(producer) ? producer : this.#prefix}`;
    this.#client = client;
  }

  ask(queue, body, {timeoutMs = this.#limits.replyTimeoutMs, replyQueue = this.#given, ...options}) {
    if (this.#waiting.size >= this.#limits.requestsWaiting) {
      return Promise.reject(new PushqError("buffer-full", `${this.#waiting.size} requests are waiting for replies`));
    }
    if (!(Number.isFinite(timeoutMs) && timeoutMs >= 0)) {
      return Promise.reject(new PushqError("invalid-request", `timeoutMs must be a number of at least 0, not ${timeoutMs}`));
    }
    const correlationId = `${this.#prefix}-${++this.#count}`;
    const waiter = {inbox: replyQueue ?? this.#own, isStored: false, until: steadyMs() + timeoutMs};
    const reply = new Promise((resolve, reject) => Object.assign(waiter, {resolve, reject}));
    this.#waiting.set(correlationId, waiter);
    const giveUp = () => waiter.reject(new RequestTimeout(queue, timeoutMs, waiter.isStored));
    const timer = setTimeout(giveUp, Math.min(timeoutMs, TIMER_MS_MAX));
    const addressed = {...options, replyTo: waiter.inbox, correlationId};
    this.#send(correlationId, waiter, [queue, body, addressed]).catch(waiter.reject);
    return reply.finally(() => {
      clearTimeout(timer);
      this.#waiting.delete(correlationId);
    });
  }

  /** Is this one of our queues of replies? */
  hears(consumer) {
    return [...this.#inboxes.values()].some((inbox) => inbox.consumer === consumer);
  }

  abandon(error) {
    this.#waiting.forEach(({reject}) => reject(error));
  }

  /** The queue of replies first: it is there when the first reply is. */
  async #send(correlationId, waiter, [queue, body, options]) {
    await this.#inbox(waiter.inbox);
    const isWanted = () => this.#waiting.get(correlationId) === waiter;
    const leftMs = () => Math.min(TIMER_MS_MAX, Math.max(1, waiter.until - steadyMs()));
    if (!isWanted()) return;
    try {
      await this.#publish(isWanted, leftMs, [queue, body, options]);
    } catch (error) {
      if (error.code === "timeout") return; // its time ends with the request's, which says what became of it
      throw error;
    }
    waiter.isStored = true;
  }

  async #publish(isWanted, leftMs, [queue, body, options]) {
    try {
      const ttlMs = options.ttlMs ?? options.ttl_ms ?? leftMs();
      await this.#client.publish(queue, body, {...options, ttlMs}, leftMs());
    } catch (error) {
      const isOverTtl = error.errors?.some(({pointer = ""}) => pointer.endsWith("/ttl_ms"));
      const isOurs = options.ttlMs === undefined && options.ttl_ms === undefined;
      if (!isOverTtl || !isOurs || !isWanted()) throw error;
      await this.#client.publish(queue, body, options, leftMs()); // a stream: its messages do not expire one by one
    }
  }

  #inbox(name) {
    if (!this.#inboxes.has(name)) {
      const inbox = {consumer: null};
      inbox.ready = this.#open(name, inbox);
      inbox.ready.catch(() => this.#inboxes.delete(name)); // the next request tries again
      this.#inboxes.set(name, inbox);
    }
    return this.#inboxes.get(name).ready;
  }

  async #open(name, inbox) {
    if (name === this.#own) await this.#make(name);
    const options = {ack: "auto", credit: this.#limits.replyCredit};
    inbox.consumer = this.#client.consume(name, options, (message) => this.#take(message));
    inbox.consumer.closed.then((error) => this.#closed(name, error));
    await inbox.consumer.ready.catch((error) => Promise.reject(unreadable(name, error)));
  }

  /** Tried again as long as somebody waits. */
  async #make(name) {
    const {replyTtlMs: message_ttl_ms, backoffBaseMs} = this.#limits;
    const config = {kind: "work", delivery: "at_most_once", message_ttl_ms, tags: {pushq: "replies"}};
    for (;;) {
      try {
        return await this.#client.put(name, config);
      } catch (error) {
        if (error.code === "conflict") return null; // it is there, with settings of somebody's choice
        const isAwaited = [...this.#waiting.values()].some(({inbox}) => inbox === name);
        if (!error.retriable || !isAwaited) throw unmakeable(name, error);
        await sleep(Math.max(askedMs(error.retryAfterMs, Math.random(), this.#limits), backoffBaseMs));
      }
    }
  }

  /** On a stream that several share most replies are for others. */
  #take(message) {
    const {correlation_id: correlationId} = message;
    const waiter = this.#waiting.get(correlationId);
    if (waiter) {
      this.#waiting.delete(correlationId);
      waiter.resolve(message);
    } else if (correlationId?.startsWith(`${this.#prefix}-`)) this.late += 1;
  }

  /** A queue of replies that is gone leaves its requests without an answer. */
  #closed(name, error) {
    this.#inboxes.delete(name);
    if (!error) return;
    for (const {inbox, reject} of this.#waiting.values()) {
      if (inbox === name) reject(unreadable(name, error));
    }
  }
}

function unmakeable(name, error) {
  if (error.status !== 403) return error;
  const needs = 'Give the key the scopes "manage:reply.*" and "consume:reply.*", or name a queue that it may consume';
  const how = 'connect({replyQueue: "…"}) or request(queue, body, {replyQueue: "…"})';
  const detail = `request() may not make its reply queue "${name}" (${error.detail}). ${needs}: ${how}`;
  return new NoReplyQueue(detail, error);
}

function unreadable(name, error) {
  if (error.status !== 403 && error.status !== 404) return error;
  const needs = `The queue must exist, and the key needs the scope "consume:${name}"`;
  return new NoReplyQueue(`request() cannot read its reply queue "${name}" (${error.detail}). ${needs}`, error);
}
