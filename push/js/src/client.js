/** What a user holds: a client of one server, which connects, carries, waits, and connects again. */

import {Http, path} from "./api.js";
import {backoffMs} from "./backoff.js";
import {HybridClock} from "./clock.js";
import {LIMITS} from "./config.js";
import {Consumer} from "./consumer.js";
import {tokenExpiry} from "./credential.js";
import {PushqError, closed, disconnected} from "./errors.js";
import {Numbering} from "./numbering.js";
import {CONNECT_OPTIONS, checkNames} from "./options.js";
import {Publisher} from "./publisher.js";
import {Requests} from "./replies.js";
import {Subscription} from "./subscription.js";
import {oncePerTurn, steadyMs, within} from "./timers.js";
import {FetchLink} from "./transports/http.js";
import {SocketLink} from "./transports/websocket.js";

const TRANSPORTS = ["ws", "sse", "eventsource", "poll"];
const EARLIER_NAMES = Object.freeze({websocket: "ws", longpoll: "poll"}); // of transports

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
  #options; #base; #transports; #index = 0; #worked = new Set(); #failures = 0; #retryMs = 0; // where and when
  #link = null; #begun = null; #session = null; #token = null; #expiry = Infinity; #refreshAt = Infinity; #http; // what is connected, as whom
  #consumers = new Set(); #clock; #numbering; #publisher; #requests; #flush; // what goes over it
  #unconnected = null; // why there is no connection, as it was told
  #timer = null; #wake = null; #closing = false; #ended; #end; #isHeard = false;
  /** @type {"connecting" | "connected" | "waiting" | "closed" | "failed"} */ state = "connecting";

  /** @param {ConnectOptions} options */
  constructor(options) {
    super();
    checkNames("connect", options, CONNECT_OPTIONS);
    checkNames("connect({limits})", options.limits ?? {}, Object.keys(LIMITS));
    this.#options = options;
    const heldConnections = isBrowser ? LIMITS.heldConnections : Infinity;
    this.limits = Object.freeze({...LIMITS, heldConnections, ...options.limits});
    this.#base = new URL(options.url ?? globalThis.location?.origin ?? "http://127.0.0.1:8080").href.replace(/\/$/, "");
    const wanted = (options.transports ?? TRANSPORTS).map((name) => EARLIER_NAMES[name] ?? name);
    this.#transports = wanted.filter((name) => Client.#supports(name, options));
    if (!this.#transports.length) throw new TypeError(`none of the transports ${wanted} works in this runtime`);
    this.#assemble(options);
    globalThis.addEventListener?.("online", this.#hurry);
    this.#run();
    this.#tick();
  }

  #assemble({fetch, trace = () => {}, replyQueue, ...options}) {
    const {limits} = this;
    this.#http = new Http({
      base: this.#base,
      fetch: (...request) => (fetch ?? globalThis.fetch)(...request), // the browser's insists on being called unbound
      token: (fresh) => this.#currentToken(fresh),
      trace,
    });
    this.#clock = new HybridClock(limits.clockAheadMs);
    this.#numbering = new Numbering(this.#clock, limits.queuesRemembered, options);
    this.#publisher = new Publisher(limits, {
      link: () => this.#link,
      numbering: this.#numbering,
      problem: (error) => this.#emit("problem", {error}),
      why: () => this.#unconnected,
    });
    this.#requests = new Requests(limits, this.producer, replyQueue ?? null, {
      publish: (...message) => this.#publisher.add(...message),
      consume: (...subscription) => this.#consume(...subscription),
      put: (queue, config) => this.#put(queue, config),
    });
    this.#flush = oncePerTurn(() => this.#consumers.forEach((consumer) => consumer.flush()));
    this.#ended = new Promise((resolve) => (this.#end = resolve));
  }

  static #supports(name, {WebSocket = globalThis.WebSocket, EventSource = globalThis.EventSource, transports}) {
    if (!TRANSPORTS.includes(name)) throw new TypeError(`unknown transport "${name}", not one of ${TRANSPORTS}`);
    if (name === "ws") return Boolean(WebSocket);
    const streams = typeof ReadableStream !== "undefined" && "body" in Response.prototype;
    if (name === "sse") return streams;
    return name === "poll" || (Boolean(EventSource) && (!streams || Boolean(transports)));
  }

  /** Which transport carries messages now, null while there is none. @returns {TransportName | null} */
  get transport() {
    return this.#link ? this.#transports[this.#index] : null;
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
    if (wrong >= 0) throw new PushqError("invalid-request", `message ${wrong} of publishMany is no {body, …options}`);
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
      link: () => this.#link,
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
    this.#link?.fail(disconnected("the client was told to reconnect"));
    this.#hurry();
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
    this.#emit("state", {state, transport: this.#transports[this.#index], ...detail});
  }

  #finish(state, error) {
    if (this.state === "closed" || this.state === "failed") return;
    this.#closing = true;
    this.#link = null;
    this.#begun?.close();
    clearTimeout(this.#timer);
    globalThis.removeEventListener?.("online", this.#hurry);
    this.#publisher.abandon(error);
    this.#requests.abandon(error);
    [...this.#consumers].forEach((consumer) => consumer.end(state === "failed" ? error : null));
    this.#enter(state, state === "failed" ? {error} : {});
    this.#hurry();
    this.#end();
  }

  #hurry = () => this.#wake?.();

  async #run() {
    while (!this.#isOver()) {
      const began = steadyMs();
      const error = await this.#connection();
      if (this.#isOver()) return;
      if (error.advice === "stop") return this.#finish("failed", error);
      if (this.#link) {
        this.#unconnected = null;
        this.#failures = steadyMs() - began >= this.limits.stableMs ? 0 : this.#failures + 1;
        this.#link = null;
        this.#consumers.forEach((consumer) => consumer.detach());
      } else {
        this.#failures += 1;
        if (!error.isOfToken && this.#fallBack()) continue;
        this.#tellWhy(error);
      }
      if (error.advice === "refresh" && this.#failures <= 1) continue;
      await this.#pause(error);
    }
  }

  /** Nothing can be sent, and publishes wait: why is told at once, and again only when there is another reason. */
  #tellWhy(error) {
    if (error.detail !== this.#unconnected?.detail) this.#emit("problem", {error});
    this.#unconnected = error;
  }

  #isOver() {
    return this.state === "closed" || this.state === "failed";
  }

  /** One connection from first byte to last; answers with the error that ended it. Never throws. */
  async #connection() {
    this.#enter("connecting");
    const name = this.#transports[this.#index];
    try {
      const link = await (name === "ws" ? SocketLink : FetchLink).open(this.#world(name));
      if (this.#isOver()) {
        link.close();
        return disconnected("closed while connecting");
      }
      return await this.#carry(name, link);
    } catch (error) {
      return error instanceof PushqError ? error : disconnected(String(error?.message ?? error));
    }
  }

  /** Acks of before the cut go first: what they settle is then not delivered again. */
  #carry(name, link) {
    this.#link = link;
    const isResumed = Boolean(link.session) && link.session === this.#session;
    this.#consumers.forEach((consumer) => (consumer.isTakenUp = isResumed));
    this.#session = link.session ?? this.#session;
    this.#worked.add(name);
    this.#unconnected = null;
    this.#enter("connected");
    this.#consumers.forEach((consumer) => consumer.flush());
    this.#consumers.forEach((consumer) => consumer.start());
    this.#publisher.pump();
    return link.ended;
  }

  /** What a link may use of us. */
  #world(name) {
    const {trace = () => {}, WebSocket, EventSource} = this.#options;
    return {
      name,
      base: this.#base,
      session: this.#session,
      limits: this.limits,
      trace,
      http: this.#http,
      WebSocket: WebSocket ?? globalThis.WebSocket,
      EventSource: EventSource ?? globalThis.EventSource,
      token: (fresh) => this.#currentToken(fresh),
      begun: (link) => (this.#begun = link), // so that a close reaches it while it connects
      receive: (frame) => this.#receive(frame),
    };
  }

  async #currentToken(fresh) {
    if (fresh || this.#token === null || Date.now() >= this.#expiry) {
      const given = await this.#askToken(this.#options.token);
      this.#token = (typeof given === "object" ? given?.token : given) ?? null;
      this.#expiry = given ? tokenExpiry(given) : Infinity;
      const leftMs = this.#expiry - Date.now(); // none at all by a computer's clock that is ahead
      const usedMs = leftMs <= 0 ? this.limits.refreshRetryMs : leftMs - Math.min(this.limits.refreshAheadMs, leftMs / 2);
      this.#refreshAt = steadyMs() + usedMs;
    }
    return this.#token;
  }

  async #askToken(token) {
    if (typeof token !== "function") return token;
    const timer = setTimeout(() => this.#tellSlowToken(), this.limits.openMs);
    timer.unref?.();
    try {
      return await token();
    } catch (error) {
      const failed = disconnected(`the function that gives the token failed: ${error?.message ?? error}`);
      throw Object.assign(failed, {isOfToken: true, cause: error}); // another transport would not help
    } finally {
      clearTimeout(timer);
    }
  }

  /** It is waited for all the same: somebody may have to sign in. */
  #tellSlowToken() {
    if (this.#isOver()) return;
    const error = disconnected(`the function that gives the token has not answered for ${this.limits.openMs} ms`);
    if (this.#link) this.#emit("problem", {error});
    else this.#tellWhy(error);
  }

  #receive(frame) {
    if (frame.type === "bye") {
      this.#retryMs = frame.retry_ms ?? 0;
      return this.#emit("bye", {code: frame.code, reason: frame.reason, retry_ms: frame.retry_ms});
    }
    if (frame.type === "error") return this.#emit("problem", {error: PushqError.from(frame.problem)});
    for (const consumer of this.#consumers) {
      if (consumer.sub === frame.sub) return consumer.receive(frame);
    }
  }

  /** A transport that never worked gives way at once; to one that has, the server may just be restarting. */
  #fallBack() {
    const tries = this.#worked.has(this.#transports[this.#index]) ? this.limits.transportFailures : 1;
    if (this.#transports.length === 1 || this.#failures % tries) return false;
    this.#index = (this.#index + 1) % this.#transports.length;
    return this.#index !== 0;
  }

  async #pause(error) {
    const retryAfterMs = Math.max(this.#retryMs, error.retryAfterMs);
    const waitMs = backoffMs(Math.max(0, this.#failures - 1), Math.random(), retryAfterMs, this.limits);
    this.#retryMs = 0;
    this.#enter("waiting", {error, retryMs: waitMs});
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#wake = () => resolve(clearTimeout(timer));
    });
    this.#wake = null;
  }

  /** The one timer. A hidden tab is throttled to one a minute: all of this is then late, and nothing is wrong. */
  #tick = () => {
    if (this.#isOver()) return;
    const now = steadyMs();
    this.#link?.check(now);
    this.#consumers.forEach((consumer) => consumer.extend(now));
    this.#publisher.check(now);
    if (this.#link && now >= this.#refreshAt) this.#refresh();
    this.#tickLater();
  };

  /** Again when a lease that was told just now is shorter than the last look allowed for. */
  #tickLater() {
    clearTimeout(this.#timer);
    const leasesMs = [...this.#consumers].map((consumer) => consumer.visibilityMs || Infinity);
    this.#timer = setTimeout(this.#tick, Math.max(50, Math.min(this.limits.tickMs, ...leasesMs.map((ms) => ms / 8))));
    this.#timer.unref?.();
  }

  async #refresh() {
    this.#refreshAt = Infinity; // until the callback has answered, so that one refresh runs at a time
    try {
      await this.#link?.refresh(await this.#currentToken(true));
    } catch (error) {
      this.#refreshAt = Math.min(this.#refreshAt, steadyMs() + this.limits.refreshRetryMs);
      this.#emit("problem", {error});
    }
  }
}
