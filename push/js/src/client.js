/** What a user holds: `connect` gives a client, which publishes, subscribes, and asks for replies. */

import {Http, path} from "./api.js";
import {HybridClock} from "./clock.js";
import {LIMITS} from "./config.js";
import {Consumer} from "./consumer.js";
import {Credential} from "./credential.js";
import {PushqError, closed, disconnected} from "./errors.js";
import {Numbering} from "./numbering.js";
import {CONNECT_OPTIONS, checkNames} from "./options.js";
import {Publisher} from "./publisher.js";
import {Requests} from "./replies.js";
import {Session, usableTransports} from "./session.js";
import {Subscription} from "./subscription.js";
import {oncePerTurn, steadyMs, within} from "./timers.js";

const isBrowser = typeof globalThis.window !== "undefined" || typeof globalThis.importScripts === "function";

/** @param {ConnectOptions} [options] @returns {Client} */
export function connect(options = {}) {
  return new Client(options);
}

/**
 * A client of one server. Events, each with `detail`: `state` {state, transport, error?, retryMs?}, `lost` {queue,
 * messages}, `gap` {queue, from, to, partition?}, `reset` {queue, cursor}, `ended` {queue, error}, `bye` {code, reason,
 * retry_ms}, and `problem` {error, queue?, message?}: what a handler threw, or the server refused for the moment. Unheard
 * problems go to the console. States: connecting → connected → waiting (to try again) → … → closed; `failed` if told to
 * end.
 */
export class Client extends EventTarget {
  #credential; #http; #session; // as whom, and how, it talks to its server
  #consumers = new Set(); #clock; #numbering; #publisher; #requests; #flush; // what goes over it
  #timer = null; #closing = false; #ended; #end; #isHeard = false;
  /** @type {"connecting" | "connected" | "waiting" | "closed" | "failed"} */ state = "connecting";

  /** @param {ConnectOptions} options */
  constructor(options) {
    super();
    checkNames("connect", options, CONNECT_OPTIONS);
    checkNames("connect({limits})", options.limits ?? {}, Object.keys(LIMITS));
    const heldConnections = isBrowser ? LIMITS.heldConnections : Infinity;
    this.limits = Object.freeze({...LIMITS, heldConnections, ...options.limits});
    const base = new URL(options.url ?? globalThis.location?.origin ?? "http://127.0.0.1:8080").href.replace(/\/$/, "");
    this.#connectTo(base, usableTransports(options), options);
    this.#assemble(options);
    globalThis.addEventListener?.("online", this.#session.hurry);
    this.#session.run();
    this.#tick();
  }

  #connectTo(base, transports, options) {
    const {limits} = this;
    const {fetch, trace = () => {}} = options;
    this.#credential = new Credential(options, limits, (error) => this.#tellSlowToken(error));
    const token = (fresh) => this.#credential.current(fresh);
    this.#http = new Http({
      base,
      fetch: (...request) => (fetch ?? globalThis.fetch)(...request), // the browser's insists on being called unbound
      token,
      trace,
    });
    this.#session = new Session(transports, options, {base, limits, http: this.#http, token}, {
      isOver: () => this.#isOver(),
      enter: (state, detail) => this.#enter(state, detail),
      problem: (error) => this.#emit("problem", {error}),
      carry: (isResumed) => this.#carry(isResumed),
      cut: () => this.#consumers.forEach((consumer) => consumer.detach()),
      receive: (frame) => this.#receive(frame),
      fail: (error) => this.#finish("failed", error),
    });
  }

  #assemble({replyQueue, ...options}) {
    const {limits} = this;
    this.#clock = new HybridClock(limits.clockAheadMs);
    this.#numbering = new Numbering(this.#clock, limits.queuesRemembered, options);
    this.#publisher = new Publisher(limits, {
      link: () => this.#session.link,
      numbering: this.#numbering,
      problem: (error) => this.#emit("problem", {error}),
      why: () => this.#session.unconnected,
    });
    this.#requests = new Requests(limits, this.producer, replyQueue ?? null, {
      publish: (...message) => this.#publisher.add(...message),
      consume: (...subscription) => this.#consume(...subscription),
      put: (queue, config) => this.#put(queue, config),
    });
    this.#flush = oncePerTurn(() => this.#consumers.forEach((consumer) => consumer.flush()));
    this.#ended = new Promise((resolve) => (this.#end = resolve));
  }

  /** Which transport carries messages now, null while there is none. @returns {TransportName | null} */
  get transport() {
    return this.#session.link ? this.#session.transport : null;
  }

  /** Who publishes, in messages that are numbered. @returns {string} */
  get producer() {
    return this.#numbering.producer;
  }

  /** For each queue that was sent a number, the next one: `firstNumber` of a later client with the same `producer`. */
  get nextNumbers() {
    return this.#numbering.next;
  }

  /** How many replies came after their request had ended. They are dropped. */
  get lateReplies() {
    return this.#requests.late;
  }

  /**
   * Resolves once the message is stored. One that is sent again, after a cut, is the same to the server: it keeps its
   * `id`, its number and its stamp, which it gets by itself where the queue can use them.
   * @param {string} queue
   * @param {unknown} body JSON value, or Uint8Array
   * @param {PublishOptions} [options]
   * @returns {Promise<Confirmation>}
   */
  publish(queue, body, options = {}) {
    return this.#publisher.add(queue, body, options);
  }

  /** Publishes `{body, …options}` in order; rejects with the first failure. @returns {Promise<Confirmation[]>} */
  async publishMany(queue, messages) {
    const wrong = messages.findIndex((message) => typeof message !== "object" || message === null || !("body" in message));
    if (wrong >= 0) throw new PushqError("invalid-request", `message ${wrong} of publishMany must be {body, …options}`);
    return Promise.all(messages.map(({body, ...options}) => this.publish(queue, body, options)));
  }

  /**
   * Publishes a request and resolves with the reply to it, a message with nothing to settle. Replies come to
   * `replyQueue`, of these options or of `connect`; without either to a queue that the client makes itself, for which
   * the key needs `manage:reply.*` and `consume:reply.*`. Rejects with `RequestTimeout` when none came in time; one
   * that comes later is dropped and counted. `ttlMs` is the time-out unless given: then nobody works on it any more.
   * @param {string} queue @param {unknown} body @param {RequestOptions} [options] @returns {Promise<Message>}
   */
  request(queue, body, options = {}) {
    if (this.#isOver()) return Promise.reject(closed());
    return this.#requests.ask(queue, body, options);
  }

  /**
   * @param {string} queue @param {SubscribeOptions} options @param {(message: Message) => unknown} handler
   * @returns {Subscription}
   */
  subscribe(queue, options, handler) {
    if (this.#closing) throw closed();
    return new Subscription(this.#consume(queue, options, handler));
  }

  #consume(queue, options, handler) {
    const consumer = new Consumer(queue, options, handler, {
      limits: this.limits,
      link: () => this.#session.link,
      soon: this.#flush,
      emit: (name, detail) => this.#emit(name, {queue, ...detail}),
      leases: () => this.#tickLater(),
      forget: () => this.#consumers.delete(consumer),
      saw: (stamp) => this.#clock.merge(HybridClock.parse(stamp), Date.now()),
      publish: (...message) => this.publish(...message),
      attached: (publish) => this.#publisher.attached(publish),
    });
    this.#consumers.add(consumer);
    consumer.start();
    return consumer;
  }

  #put(queue, config) {
    return this.#http.call("PUT", path(queue), JSON.stringify(config), AbortSignal.timeout(this.limits.requestMs));
  }

  /** Drops the connection and connects again, say after a change of network. Messages in work may come twice. */
  reconnect() {
    this.#session.link?.fail(disconnected("the client was told to reconnect"));
    this.#session.hurry();
  }

  /** Waits, `closeMs` at most, for handlers and for what was published; then leaves, and open leases return at once. */
  async close() {
    if (this.#closing) return this.#ended;
    this.#closing = true;
    await within(this.limits.closeMs, this.#leave());
    return this.#finish("closed", closed());
  }

  /** Running handlers may still publish and ask, so the queues of replies are left last. */
  async #leave() {
    const own = [...this.#consumers].filter((consumer) => !this.#requests.hears(consumer));
    await Promise.all(own.map((consumer) => consumer.close()));
    await this.#publisher.idle();
    await Promise.all([...this.#consumers].map((consumer) => consumer.close()));
  }

  addEventListener(name, ...rest) {
    this.#isHeard ||= name === "problem";
    super.addEventListener(name, ...rest);
  }

  #emit(name, detail) {
    if (name === "problem" && !this.#isHeard) console.warn("pushq:", detail.error);
    this.dispatchEvent(new CustomEvent(name, {detail}));
  }

  #enter(state, detail = {}) {
    this.state = state;
    this.#emit("state", {state, transport: this.#session.transport, ...detail});
  }

  #finish(state, error) {
    if (this.state === "closed" || this.state === "failed") return;
    this.#closing = true;
    this.#session.leave();
    clearTimeout(this.#timer);
    globalThis.removeEventListener?.("online", this.#session.hurry);
    this.#publisher.abandon(error);
    this.#requests.abandon(error);
    [...this.#consumers].forEach((consumer) => consumer.end(state === "failed" ? error : null));
    this.#enter(state, state === "failed" ? {error} : {});
    this.#session.hurry();
    this.#end();
  }

  #isOver() {
    return this.state === "closed" || this.state === "failed";
  }

  /** Acks of before the cut go first: what they settle is then not delivered again. */
  #carry(isResumed) {
    this.#consumers.forEach((consumer) => (consumer.isTakenUp = isResumed));
    if (!isResumed) this.#consumers.forEach((consumer) => consumer.doubt());
    this.#enter("connected");
    this.#consumers.forEach((consumer) => consumer.flush());
    this.#consumers.forEach((consumer) => consumer.start());
    this.#publisher.pump();
  }

  #tellSlowToken(error) {
    if (this.#isOver()) return;
    if (this.#session.link) this.#emit("problem", {error});
    else this.#session.tellWhy(error);
  }

  #receive(frame) {
    if (frame.type === "bye") return this.#emit("bye", {code: frame.code, reason: frame.reason, retry_ms: frame.retry_ms});
    if (frame.type === "error") return this.#emit("problem", {error: PushqError.from(frame.problem)});
    for (const consumer of this.#consumers) {
      if (consumer.sub === frame.sub) return consumer.receive(frame);
    }
  }

  /** The one timer. A hidden tab is throttled to one a minute: all of this is then late, and nothing is wrong. */
  #tick = () => {
    if (this.#isOver()) return;
    const now = steadyMs();
    this.#session.link?.check(now);
    this.#consumers.forEach((consumer) => consumer.extend(now));
    this.#publisher.check(now);
    if (this.#session.link && this.#credential.isDue(now)) this.#renew();
    this.#tickLater();
  };

  /** Again when a lease that was told just now is shorter than the last look allowed for. */
  #tickLater() {
    clearTimeout(this.#timer);
    const leasesMs = [...this.#consumers].map((consumer) => consumer.visibilityMs || Infinity);
    this.#timer = setTimeout(this.#tick, Math.max(50, Math.min(this.limits.tickMs, ...leasesMs.map((ms) => ms / 8))));
    this.#timer.unref?.();
  }

  async #renew() {
    try {
      await this.#credential.renew(this.#session.link);
    } catch (error) {
      this.#emit("problem", {error});
    }
  }
}
