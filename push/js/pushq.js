/**
 * Pushq for browsers and Node: the far end of a message's path, where a page publishes, is pushed to, and acknowledges.
 *
 *     const pushq = connect({url: location.origin, token: async () => (await fetch("/my/token")).text()});
 *     const {id, seq} = await pushq.publish("orders", {item: 7});
 *     pushq.subscribe("orders", {credit: 16}, async ({body}) => handle(body)); // resolved = ack, thrown = nack
 *
 * It is one file because a page imports it as it is, without a build. Read it from the top: the client and its loop, a
 * subscription, the publisher, then the transports. Both links (one WebSocket; SSE, EventSource or long-poll over fetch)
 * have the same verbs and hand on the same frames, so nothing above them knows which one is in use.
 *
 * Delivery is at least once in both directions: a publish that was cut is sent again under the same `id`, a message
 * whose ack was cut is delivered again with `attempt` 2. Names that travel keep the wire's spelling
 * (`visibility_timeout_ms`, `content_type`); names that stay here are camelCase.
 */

/** Every bound of this module by name; `connect({limits: {…}})` replaces single ones. */
export const LIMITS = Object.freeze({
  publishBufferMessages: 10_000, // unconfirmed and waiting together; beyond it publish rejects with `buffer-full`
  publishBufferChars: 16 * 1024 * 1024,
  publishFrameMessages: 100,
  publishFrameChars: 1024 * 1024, // at most 3 MiB as UTF-8: below the 4 MiB at which the server closes for good
  messageBytes: 3 * 1024 * 1024, // of one message as JSON; refused here for the same reason
  publishWindowMessages: 1_000, // sent and not yet confirmed
  publishTimeoutMs: 60_000,
  settleFrameReceipts: 1_000,
  creditReturnedAt: 0.5, // credit that no receipt gives back is returned when this part of it is used up
  streamBacklogMessages: 1_000, // received and not yet handled; beyond it a stream goes on later from its cursor
  subscriptionCredit: 64,
  visibilityTimeoutMs: 30_000, // assumed where neither the caller nor the server names the queue's
  maxHandlerMs: 300_000,
  openMs: 8_000,
  requestMs: 30_000,
  closeMs: 5_000,
  pollWaitMs: 20_000,
  pollTurnMs: 500, // the wait of a poll while others queue for its connection
  pollLastMs: 2_000, // and on the last connection there is: the next subscription may need it
  heldConnections: 4, // of a browser's six per host: two stay free for publishes and acks
  eventChars: 4 * 1024 * 1024, // of one event of a stream
  silenceGraceMs: 5_000,
  pingMs: 25_000, // assumed until `connected` names the server's
  commentMs: 15_000, // an SSE stream says something this often
  backoffBaseMs: 500,
  backoffCapMs: 20_000,
  stableMs: 5_000, // a connection that lived this long starts the back-off again
  transportFailures: 3, // of a transport that has worked before, until the next one is tried
  refreshAheadMs: 30_000,
  tickMs: 1_000,
});

const TRANSPORTS = ["websocket", "sse", "eventsource", "longpoll"];
const RETRIABLE = new Set([
  "disconnected", "rate-limited", "too-many-connections", "not-leader", "unavailable", "overloaded", "draining",
  "not-durable", "outcome-unknown",
]);
const isBrowser = typeof globalThis.window !== "undefined" || typeof globalThis.importScripts === "function";

/**
 * @typedef {string | {token: string, expires_at?: string}} Token
 * @typedef {"websocket" | "sse" | "eventsource" | "longpoll"} TransportName
 * @typedef {"earliest" | "latest" | {seq: number} | {time: string} | {cursor: string}} From
 * @typedef {{id: string, seq: number, partition: number, duplicate: boolean}} Confirmation
 *
 * @typedef {object} ConnectOptions
 * @property {string} [url] base URL of the server; the page's own origin when left out
 * @property {string | (() => Token | Promise<Token>)} [token] API key or JWT; asked for on connect and before it expires
 * @property {TransportName[]} [transports] which to try, in this order
 * @property {Partial<typeof LIMITS>} [limits]
 * @property {(direction: "in" | "out", text: string) => void} [trace] sees every frame as text, tokens left out
 * @property {typeof WebSocket} [WebSocket] for a runtime without one (Node 20), and likewise `EventSource` and `fetch`
 * @property {typeof EventSource} [EventSource]
 * @property {typeof fetch} [fetch]
 *
 * @typedef {object} SubscribeOptions
 * @property {number} [credit] messages held here at once; a stream without it is sent as fast as it is read
 * @property {string} [group] consumer group of a stream
 * @property {From} [from] where a stream begins
 * @property {"manual" | "auto"} [ack] auto: a message is gone once it was sent (at most once)
 * @property {number} [visibility_timeout_ms] lease of one message; extended while its handler runs
 * @property {number} [maxHandlerMs] how long a handler's lease is extended
 */

/** An error with a stable `code`: the server's problem, or our `disconnected`, `timeout`, `buffer-full`, `closed`. */
export class PushqError extends Error {
  /**
   * @param {string} code @param {string} detail
   * @param {{status?: number, retryAfterMs?: number, errors?: object[]}} [more]
   */
  constructor(code, detail, {status = 0, retryAfterMs = 0, errors = []} = {}) {
    super(`${detail} (${code})`);
    const retriable = RETRIABLE.has(code);
    Object.assign(this, {name: "PushqError", code, detail, status, retryAfterMs, errors, retriable});
  }

  /** @param {object} problem as RFC 9457 and the API describe it */
  static from(problem) {
    const {code = "internal", detail = problem.title ?? "the server gave no detail", status, errors} = problem;
    return new PushqError(code, detail, {status, errors, retryAfterMs: problem.retry_after_ms});
  }
}

const disconnected = (detail, retryAfterMs = 0) => new PushqError("disconnected", detail, {retryAfterMs});

/** Full jitter: anywhere below 0.5 s·2^n, capped; the server may widen the window. `random` is in [0, 1). */
export function backoffMs(failures, random, widenedMs = 0, limits = LIMITS) {
  const windowMs = Math.min(limits.backoffCapMs, limits.backoffBaseMs * 2 ** Math.min(failures, 30));
  return random * Math.max(windowMs, widenedMs);
}

/** What a close code advises: 4500–4999 stop; 4401 come back with a new token; everything else come back. */
export function closeAdvice(code) {
  if (code >= 4500 && code <= 4999) return "stop";
  return code === 4401 ? "refresh" : "reconnect";
}

/** When a token ends, in ms since 1970: as its callback says, else a JWT's own `exp`; Infinity when neither tells. */
export function tokenExpiry(token) {
  if (typeof token === "object" && token?.expires_at) return Date.parse(token.expires_at);
  const payload = typeof token === "string" && token.split(".").length === 3 ? token.split(".")[1] : null;
  try {
    const {exp} = payload ? JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/"))) : {};
    return typeof exp === "number" ? exp * 1000 : Infinity;
  } catch {
    return Infinity;
  }
}

/** @param {ConnectOptions} [options] @returns {Client} */
export function connect(options = {}) {
  return new Client(options);
}

/**
 * A client of one server. Events, each with `detail`: `state` {state, transport, error?, retryMs?}, `lost` {queue,
 * messages}, `gap` {queue, from, to}, `reset` {queue, cursor}, `ended` {queue, error}, `bye` {code, reason, retry_ms},
 * and `problem` {error, queue?, message?}: what a handler threw, or the server refused for the moment. Unheard problems
 * go to the console. States: connecting → connected → waiting (for the next try) → … → closed; `failed` when told to stop.
 */
export class Client extends EventTarget {
  #options; #base; #transports; #index = 0; #worked = new Set(); #failures = 0; #retryMs = 0; // where and when
  #link = null; #begun = null; #session = null; #token = null; #expiry = Infinity; // what is connected, and as whom
  #subscriptions = new Set(); #publisher; #flush; // what goes over it
  #timer = null; #wake = null; #closing = false; #ended; #end; #isHeard = false;
  /** @type {"connecting" | "connected" | "waiting" | "closed" | "failed"} */ state = "connecting";

  /** @param {ConnectOptions} options */
  constructor(options) {
    super();
    this.#options = options;
    const heldConnections = isBrowser ? LIMITS.heldConnections : Infinity;
    this.limits = Object.freeze({...LIMITS, heldConnections, ...options.limits});
    this.#base = new URL(options.url ?? globalThis.location?.origin ?? "http://127.0.0.1:8080").href.replace(/\/$/, "");
    const wanted = options.transports ?? TRANSPORTS;
    this.#transports = wanted.filter((name) => Client.#supports(name, options));
    if (!this.#transports.length) throw new TypeError(`none of the transports ${wanted} works in this runtime`);
    this.#publisher = new Publisher(this.limits, () => this.#link, (error) => this.#emit("problem", {error}));
    this.#flush = oncePerTurn(() => this.#subscriptions.forEach((subscription) => subscription.flush()));
    this.#ended = new Promise((resolve) => (this.#end = resolve));
    globalThis.addEventListener?.("online", this.#hurry);
    this.#run();
    this.#tick();
  }

  static #supports(name, {WebSocket = globalThis.WebSocket, EventSource = globalThis.EventSource, transports}) {
    if (!TRANSPORTS.includes(name)) throw new TypeError(`unknown transport "${name}", not one of ${TRANSPORTS}`);
    if (name === "websocket") return Boolean(WebSocket);
    const streams = typeof ReadableStream !== "undefined" && "body" in Response.prototype;
    if (name === "sse") return streams;
    return name === "longpoll" || (Boolean(EventSource) && (!streams || Boolean(transports)));
  }

  /** Which transport carries messages now, null while there is none. @returns {TransportName | null} */
  get transport() {
    return this.#link ? this.#transports[this.#index] : null;
  }

  /**
   * Resolves once the message is stored. A message without an `id` gets one, so that a retry can be recognised.
   * @param {string} queue
   * @param {unknown} body JSON value, or Uint8Array
   * @param {{id?: string, key?: string, headers?: Record<string, string>, content_type?: string}} [options] any field of
   *   the API's message
   * @returns {Promise<Confirmation>}
   */
  publish(queue, body, options = {}) {
    if (this.#closing) return Promise.reject(new PushqError("closed", "this client is closed"));
    return this.#publisher.add(queue, body, options);
  }

  /** Publishes `{body, …options}` in order; rejects with the first failure. @returns {Promise<Confirmation[]>} */
  publishMany(queue, messages) {
    return Promise.all(messages.map(({body, ...options}) => this.publish(queue, body, options)));
  }

  /** @param {string} queue @param {SubscribeOptions} options @param {(message: Message) => unknown} handler */
  subscribe(queue, options, handler) {
    if (this.#closing) throw new PushqError("closed", "this client is closed");
    const subscription = new Subscription(queue, options, handler, {
      limits: this.limits,
      link: () => this.#link,
      soon: this.#flush,
      emit: (name, detail) => this.#emit(name, {queue, ...detail}),
      forget: () => this.#subscriptions.delete(subscription),
    });
    this.#subscriptions.add(subscription);
    subscription.start();
    return subscription;
  }

  /** Drops the connection and connects again, say after a change of network. Messages in work may come a second time. */
  reconnect() {
    this.#link?.fail(disconnected("the client was told to reconnect"));
    this.#hurry();
  }

  /** Waits, `closeMs` at most, for handlers and for what was published; then leaves, and open leases return at once. */
  async close() {
    if (this.#closing) return this.#ended;
    this.#closing = true;
    const subscriptions = [...this.#subscriptions].map((subscription) => subscription.close());
    await within(this.limits.closeMs, Promise.all([...subscriptions, this.#publisher.idle()]));
    return this.#finish("closed", new PushqError("closed", "this client is closed"));
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
    [...this.#subscriptions].forEach((subscription) => subscription.end(state === "failed" ? error : null));
    this.#enter(state, state === "failed" ? {error} : {});
    this.#hurry();
    this.#end();
  }

  #hurry = () => this.#wake?.();

  async #run() {
    while (!this.#isOver()) {
      const began = Date.now();
      const error = await this.#connection();
      if (this.#isOver()) return;
      if (error.advice === "stop") return this.#finish("failed", error);
      if (this.#link) {
        this.#failures = Date.now() - began >= this.limits.stableMs ? 0 : this.#failures + 1;
        this.#link = null;
        this.#subscriptions.forEach((subscription) => subscription.detach());
      } else {
        this.#failures += 1;
        if (this.#fallBack()) continue;
      }
      if (error.advice === "refresh" && this.#failures <= 1) continue;
      await this.#pause(error);
    }
  }

  #isOver() {
    return this.state === "closed" || this.state === "failed";
  }

  /** One connection from first byte to last; answers with the error that ended it. Never throws. */
  async #connection() {
    this.#enter("connecting");
    const name = this.#transports[this.#index];
    try {
      const link = await (name === "websocket" ? SocketLink : FetchLink).open(this.#world(name));
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
    this.#session = link.session ?? this.#session;
    this.#worked.add(name);
    this.#enter("connected");
    this.#subscriptions.forEach((subscription) => subscription.flush());
    this.#subscriptions.forEach((subscription) => subscription.start());
    this.#publisher.pump();
    return link.ended;
  }

  /** What a link may use of us. */
  #world(name) {
    const {trace = () => {}, fetch, WebSocket, EventSource} = this.#options;
    return {
      name,
      base: this.#base,
      session: this.#session,
      limits: this.limits,
      trace,
      fetch: (...request) => (fetch ?? globalThis.fetch)(...request), // the browser's insists on being called unbound
      WebSocket: WebSocket ?? globalThis.WebSocket,
      EventSource: EventSource ?? globalThis.EventSource,
      token: (fresh) => this.#currentToken(fresh),
      begun: (link) => (this.#begun = link), // so that a close reaches it while it connects
      receive: (frame) => this.#receive(frame),
    };
  }

  async #currentToken(fresh) {
    if (fresh || this.#token === null || Date.now() >= this.#expiry) {
      const given = typeof this.#options.token === "function" ? await this.#options.token() : this.#options.token;
      this.#token = (typeof given === "object" ? given?.token : given) ?? null;
      this.#expiry = given ? tokenExpiry(given) : Infinity;
    }
    return this.#token;
  }

  #receive(frame) {
    if (frame.type === "bye") {
      this.#retryMs = frame.retry_ms ?? 0;
      return this.#emit("bye", {code: frame.code, reason: frame.reason, retry_ms: frame.retry_ms});
    }
    if (frame.type === "error") return this.#emit("problem", {error: PushqError.from(frame.problem)});
    for (const subscription of this.#subscriptions) {
      if (subscription.sub === frame.sub) return subscription.receive(frame);
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
    const widenedMs = Math.max(this.#retryMs, error.retryAfterMs);
    const retryMs = backoffMs(Math.max(0, this.#failures - 1), Math.random(), widenedMs, this.limits);
    this.#retryMs = 0;
    this.#enter("waiting", {error, retryMs});
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, retryMs);
      this.#wake = () => resolve(clearTimeout(timer));
    });
    this.#wake = null;
  }

  /** The one timer. A hidden tab is throttled to one a minute: all of this is then late, and nothing is wrong. */
  #tick = () => {
    if (this.#isOver()) return;
    const now = Date.now();
    this.#link?.check(now);
    this.#subscriptions.forEach((subscription) => subscription.extend(now));
    this.#publisher.check(now);
    if (this.#link && now >= this.#expiry - this.limits.refreshAheadMs) this.#refresh();
    const leasesMs = [...this.#subscriptions].map((subscription) => subscription.visibilityMs || Infinity);
    this.#timer = setTimeout(this.#tick, Math.max(50, Math.min(this.limits.tickMs, ...leasesMs.map((ms) => ms / 8))));
    this.#timer.unref?.();
  };

  async #refresh() {
    this.#expiry = Infinity; // until the callback has answered, so that one refresh runs at a time
    try {
      await this.#link?.refresh(await this.#currentToken(true));
    } catch (error) {
      this.#emit("problem", {error});
    }
  }
}

/** One delivery. `lost` turns true and `signal` aborts when its lease has gone to somebody else. */
export class Message {
  #abort = new AbortController();
  lost = false;

  /** @param {object} fields of the API's Message: id, seq, body, content_type, headers, key, attempt, published_at … */
  constructor(fields) {
    Object.assign(this, fields);
    if (typeof fields.body_base64 === "string") this.body = decodeBase64(fields.body_base64);
  }

  get signal() {
    return this.#abort.signal;
  }

  lose() {
    this.lost = true;
    this.#abort.abort(new PushqError("stale-receipt", "the lease was lost"));
  }
}

/**
 * One queue's messages on their way to a handler. With a receipt they run side by side, as many as the credit; without
 * (a stream, `ack: "auto"`) one after the other, in order. `ready` resolves when the server has the subscription,
 * `closed` when it is over.
 */
class Subscription {
  #handler; #client; #starting = null; #stopping = false; #isOver = false;
  #running = new Map(); #leases = new Map(); #backlog = []; #draining = false; // leased by receipt; times; in line
  #settled = {ack: [], nack: []}; #returned = 0; #sending = new Set(); // to be told to the server; being told
  #room = []; #idle = []; #resolveReady; #rejectReady; #finish; // who waits for what
  /** Of the last message taken in: give it to `from` to go on in another page. @type {string | null} */ cursor = null;
  /** Our number on this connection. @type {number | null} */ sub = null;

  constructor(queue, options, handler, client) {
    if (typeof handler !== "function") throw new TypeError("subscribe(queue, options, handler) needs a handler");
    const {maxHandlerMs = client.limits.maxHandlerMs, ...wire} = options ?? {};
    const credit = wire.credit ?? client.limits.subscriptionCredit;
    const visibilityMs = wire.visibility_timeout_ms ?? client.limits.visibilityTimeoutMs;
    Object.assign(this, {queue, credit, maxHandlerMs, wire, visibilityMs});
    this.#handler = handler;
    this.#client = client;
    this.ready = new Promise((resolve, reject) => ([this.#resolveReady, this.#rejectReady] = [resolve, reject]));
    this.ready.catch(() => {}); // told by the `ended` event too
    this.closed = new Promise((resolve) => (this.#finish = resolve));
  }

  /** Where the next subscribe begins. */
  get from() {
    return this.cursor === null ? this.wire.from : {cursor: this.cursor};
  }

  /** How many more messages fit. */
  get room() {
    return this.#stopping ? 0 : this.credit - this.#running.size - this.#backlog.length;
  }

  /** Resolves when there is room, or when the subscription is over. */
  async untilRoom() {
    while (this.room <= 0 && !this.#isOver) await new Promise((resolve) => this.#room.push(resolve));
  }

  /** Tells the server of it; again after each reconnect. */
  async start() {
    const link = this.#client.link();
    if (!link || this.#isOver || this.#stopping || this.#starting === link) return;
    this.#starting = link;
    this.sub = null;
    try {
      const answer = await link.subscribe(this);
      if (this.#isOver) return void link.unsubscribe(answer); // closed while the answer was under way
      if (this.#client.link() !== link) return;
      this.cursor = answer.cursor ?? this.cursor; // where "latest" was: a cut before the first message misses nothing
      this.visibilityMs = this.wire.visibility_timeout_ms ?? answer.visibility_timeout_ms ?? this.visibilityMs;
      this.#resolveReady();
    } catch (error) {
      this.#refused(error, link);
    }
  }

  /** The connection is gone; its number for us means nothing on the next one. */
  detach() {
    this.sub = null;
    this.#returned = 0;
  }

  #refused(error, link) {
    if (this.#starting === link) this.#starting = null;
    if (error.code === "disconnected") return; // the reconnect starts it again
    if (!error.retriable) return this.end(error);
    this.#client.emit("problem", {error});
    sleep(Math.max(error.retryAfterMs, this.#client.limits.backoffBaseMs)).then(() => this.start());
  }

  receive(frame) {
    if (frame.type === "deliver") return this.#deliver(frame);
    if (frame.type === "lost") return this.#lose(frame.receipts.flatMap((receipt) => this.#running.get(receipt) ?? []));
    if (frame.type === "gap") return this.#client.emit("gap", {from: frame.from, to: frame.to});
    if (frame.type === "ended") return this.#refused(PushqError.from(frame.problem), this.#starting);
    if (frame.type !== "reset") return;
    this.cursor = frame.cursor ?? this.cursor;
    this.#client.emit("reset", {cursor: frame.cursor});
  }

  #deliver({messages, cursor}) {
    if (this.#stopping) return; // leases return with the unsubscribe that follows
    const isFull = this.#backlog.length + messages.length > this.#client.limits.streamBacklogMessages;
    if (isFull && this.#backlog.length && !messages[0].receipt) return this.#overflow();
    this.cursor = cursor ?? this.cursor;
    const now = Date.now();
    for (const fields of messages) {
      const message = new Message(fields);
      if (!message.receipt) this.#backlog.push(message);
      else this.#lease(message, now);
    }
    this.#drain();
  }

  /** A stream that outruns its handler is left, and taken up again at the cursor when the backlog is done. */
  #overflow() {
    this.#client.link()?.unsubscribe(this);
    this.sub = null;
    this.#starting = null;
  }

  #lease(message, now) {
    if (this.wire.ack === "auto") {
      this.#settle("ack", message);
      this.#backlog.push(message);
      return;
    }
    this.#running.set(message.receipt, message);
    this.#leases.set(message, {begunAt: now, extendAt: now + this.visibilityMs / 2});
    this.#run(message);
  }

  async #run(message) {
    const isDone = await this.#handle(message);
    this.#running.delete(message.receipt);
    this.#leases.delete(message);
    if (isDone || !message.lost) this.#settle(isDone ? "ack" : "nack", message);
    this.#stir();
  }

  /** Never throws: what the handler throws is the caller's news and the message's nack. */
  async #handle(message) {
    try {
      await this.#handler(message);
      return true;
    } catch (error) {
      this.#client.emit("problem", {error, message});
      return false;
    }
  }

  async #drain() {
    if (this.#draining) return;
    this.#draining = true;
    while (this.#backlog.length && !this.#isOver) {
      await this.#handle(this.#backlog[0]);
      const message = this.#backlog.shift();
      this.#giveCredit();
      this.#stir();
    }
    this.#draining = false;
    if (this.#starting === null && !this.#isOver) this.start();
  }

  /** A paced stream has no acks to give its credit back. */
  #giveCredit() {
    if (this.wire.credit === undefined || this.cursor === null) return;
    this.#returned += 1;
    if (this.#returned >= this.credit * this.#client.limits.creditReturnedAt) this.#client.soon();
  }

  #settle(verdict, message) {
    this.#settled[verdict].push(message);
    this.#client.soon();
  }

  #stir() {
    this.#room.splice(0).forEach((resolve) => resolve());
    if (!this.#running.size && !this.#backlog.length) this.#idle.splice(0).forEach((resolve) => resolve());
  }

  /** Sends what handlers decided since the last turn: one frame per verdict. */
  flush() {
    const link = this.#client.link();
    if (!link) return;
    const most = this.#client.limits.settleFrameReceipts;
    for (const [verdict, messages] of Object.entries(this.#settled)) {
      while (messages.length) this.#send(link, verdict, messages.splice(0, most));
    }
    if (!this.#returned || this.sub === null) return;
    link.credit(this, this.#returned);
    this.#returned = 0;
  }

  #send(link, verdict, messages) {
    const sending = this.#tell(link, verdict, messages).finally(() => this.#sending.delete(sending));
    this.#sending.add(sending);
  }

  async #tell(link, verdict, messages) {
    try {
      const {results} = await link.settle(verdict, this, messages.map((message) => message.receipt));
      if (verdict === "ack") this.#lose(messages.filter((_, index) => results[index]?.ok === false));
    } catch (error) {
      // The receipts stay good: they are told again after the reconnect. Credit bounds how many can wait here.
      if (!error.retriable) return this.#client.emit("problem", {error});
      this.#settled[verdict].unshift(...messages);
      if (error.code !== "disconnected") sleep(Math.max(error.retryAfterMs, 100)).then(() => this.#client.soon());
    }
  }

  #lose(messages) {
    const lost = messages.filter((message) => !message.lost);
    lost.forEach((message) => message.lose());
    if (lost.length) this.#client.emit("lost", {messages: lost});
  }

  /** Lengthens the leases whose half has passed, while their handlers may still run. */
  async extend(now) {
    const link = this.#client.link();
    if (!link || !this.visibilityMs) return;
    const due = [];
    for (const [message, lease] of this.#leases) {
      if (message.lost || now < lease.extendAt || now - lease.begunAt >= this.maxHandlerMs) continue;
      lease.extendAt = now + this.visibilityMs / 2;
      due.push(message);
    }
    while (due.length) {
      const messages = due.splice(0, this.#client.limits.settleFrameReceipts);
      const receipts = messages.map((message) => message.receipt);
      const lease = {visibility_timeout_ms: this.visibilityMs};
      const answer = await link.settle("extend", this, receipts, lease).catch(() => null); // again at the next half
      const isLost = (message, index) => answer?.results[index]?.ok === false && this.#running.has(message.receipt);
      this.#lose(messages.filter(isLost));
    }
  }

  /** Starts no more handlers, lets the running ones finish, acks them, leaves. */
  async close() {
    if (this.#stopping) return this.closed;
    this.#stopping = true;
    if (!this.#running.size) this.#backlog.splice(1);
    if (this.#running.size || this.#backlog.length) await new Promise((resolve) => this.#idle.push(resolve));
    this.flush();
    await Promise.all(this.#sending);
    await this.#client.link()?.unsubscribe(this);
    this.end(null);
  }

  /** @param {PushqError | null} error null when the caller closed it */
  end(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.sub = null;
    this.#client.forget();
    if (error) this.#client.emit("ended", {error});
    this.#rejectReady(error ?? new PushqError("closed", `the subscription of "${this.queue}" was closed`));
    this.#stir();
    this.#finish(error);
  }
}

/** Gathers publishes of one turn into frames and holds each until the server has confirmed it, across reconnects. */
class Publisher {
  #limits; #link; #problem; #pump; #idle = []; #number = 0;
  #items = new Set(); #chars = 0; #queues = new Map(); // all that are unconfirmed; those not in flight, by queue
  #inFlight = 0; #frames = 0;

  constructor(limits, link, problem) {
    this.#limits = limits;
    this.#link = link;
    this.#problem = problem;
    this.#pump = oncePerTurn(() => this.pump());
  }

  add(queue, body, options) {
    const id = options.id ?? newId();
    const text = JSON.stringify({...options, id, ...encodeBody(body, options)});
    const refusal = this.#refusal(text);
    if (refusal) return Promise.reject(refusal);
    return new Promise((resolve, reject) => {
      const deadline = Date.now() + this.#limits.publishTimeoutMs;
      const item = {number: this.#number++, text, resolve, reject, deadline, isAlone: false};
      this.#items.add(item);
      this.#chars += text.length;
      this.#waiting(queue).items.push(item);
      this.#pump();
    });
  }

  #refusal(text) {
    const {messageBytes, publishBufferMessages, publishBufferChars} = this.#limits;
    if (text.length * 3 > messageBytes && new TextEncoder().encode(text).length > messageBytes) {
      return new PushqError("message-too-large", `a message takes more than ${messageBytes} bytes`, {status: 413});
    }
    if (this.#items.size < publishBufferMessages && this.#chars + text.length <= publishBufferChars) return null;
    const detail = `${this.#items.size} messages of ${this.#chars} characters wait for the server`;
    return new PushqError("buffer-full", detail);
  }

  /** Resolves when nothing is unconfirmed. */
  idle() {
    return this.#items.size ? new Promise((resolve) => this.#idle.push(resolve)) : Promise.resolve();
  }

  pump() {
    const link = this.#link();
    while (link && this.#frames < link.publishFrames && this.#inFlight < this.#limits.publishWindowMessages) {
      const batch = this.#take(Date.now());
      if (!batch) return;
      this.#send(link, batch);
    }
  }

  check(now) {
    for (const item of this.#items) {
      if (now < item.deadline) break; // in the order of their deadlines
      this.#reject(item, new PushqError("timeout", "the server did not confirm in time; the message may be stored"));
    }
    for (const entry of this.#queues.values()) entry.items = entry.items.filter((item) => this.#items.has(item));
    this.pump();
  }

  abandon(error) {
    this.#items.forEach((item) => this.#reject(item, error));
    this.#queues.clear();
  }

  #waiting(queue) {
    if (!this.#queues.has(queue)) this.#queues.set(queue, {items: [], pausedUntil: 0});
    return this.#queues.get(queue);
  }

  /** The next frame; queues take turns. A message that was refused in company is sent alone. */
  #take(now) {
    for (const [queue, entry] of this.#queues) {
      if (entry.pausedUntil > now) continue;
      this.#queues.delete(queue);
      if (!entry.items.length) continue;
      this.#queues.set(queue, entry);
      return {queue, items: entry.items.splice(0, this.#frameLength(entry.items))};
    }
    return null;
  }

  #frameLength(items) {
    const {publishFrameMessages, publishWindowMessages, publishFrameChars} = this.#limits;
    const most = Math.min(items.length, publishFrameMessages, publishWindowMessages - this.#inFlight);
    let length = 1;
    for (let chars = items[0].text.length; length < most; length += 1) {
      chars += items[length].text.length;
      if (chars > publishFrameChars || items[0].isAlone || items[length].isAlone) break;
    }
    return length;
  }

  async #send(link, {queue, items}) {
    this.#inFlight += items.length;
    this.#frames += 1;
    try {
      const {messages} = await link.publish(queue, items.map((item) => item.text));
      items.forEach((item, index) => this.#answer(item, messages[index]));
    } catch (error) {
      this.#failed(queue, items, error);
    } finally {
      this.#inFlight -= items.length;
      this.#frames -= 1;
      this.pump();
    }
  }

  #answer(item, {error, ...confirmation}) {
    if (error) return this.#reject(item, PushqError.from(typeof error === "string" ? {code: error} : error));
    if (this.#forget(item)) item.resolve(confirmation);
  }

  /** Several `publish` calls share a frame: one wrong message must not fail its neighbours. */
  #failed(queue, items, error) {
    const isShared = items.length > 1 && [400, 413, 422].includes(error.status);
    if (!error.retriable && !isShared) return items.forEach((item) => this.#reject(item, error));
    if (error.retriable && error.code !== "disconnected") this.#problem(error);
    const entry = this.#waiting(queue);
    items.forEach((item) => (item.isAlone ||= isShared));
    entry.items.unshift(...items.filter((item) => this.#items.has(item)));
    entry.items.sort((a, b) => a.number - b.number);
    if (error.code === "disconnected" || isShared) return;
    entry.pausedUntil = Date.now() + Math.max(error.retryAfterMs, this.#limits.backoffBaseMs);
  }

  #reject(item, error) {
    if (this.#forget(item)) item.reject(error);
  }

  #forget(item) {
    if (!this.#items.delete(item)) return false;
    this.#chars -= item.text.length;
    if (!this.#items.size) this.#idle.splice(0).forEach((resolve) => resolve());
    return true;
  }
}

/** One WebSocket carrying every verb as a frame of `pushq.v1.json`. */
class SocketLink {
  #world; #socket; #open; #end; #isOver = false;
  #requests = new Map(); #nextId = 1; #heardAt = Date.now(); #pingMs; #problem = null;
  publishFrames = 16;
  /** @type {string | null} */ session = null;

  static async open(world) {
    const token = await world.token(true);
    const link = new SocketLink(world);
    world.begun(link);
    return link.#handshake(token);
  }

  constructor(world) {
    this.#world = world;
    this.#pingMs = world.limits.pingMs;
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.#socket = new world.WebSocket(`${world.base.replace(/^http/, "ws")}/v1/ws`, "pushq.v1.json");
    this.#socket.onmessage = ({data}) => this.#receive(data);
    this.#socket.onclose = ({code, reason}) => this.#closed(code, reason);
    this.#socket.onerror = () => {}; // says nothing; `close` follows
  }

  #handshake(token) {
    const resume = this.#world.session ? {resume: {session: this.#world.session}} : {};
    this.#socket.onopen = () => {
      this.#socket.send(JSON.stringify({type: "connect", id: 0, ...(token ? {token} : {}), ...resume}));
      this.#world.trace("out", JSON.stringify({type: "connect", id: 0, token: "…", ...resume}));
    };
    const timer = setTimeout(() => this.fail(disconnected("no connection in time")), this.#world.limits.openMs);
    const opened = new Promise((resolve, reject) => {
      this.#open = (connected) => {
        this.#pingMs = connected.ping_ms ?? this.#pingMs;
        this.session = connected.session;
        resolve(this);
      };
      this.ended.then(reject);
    });
    return opened.finally(() => clearTimeout(timer));
  }

  subscribe(subscription) {
    const {queue, from, wire} = subscription;
    return this.#request({type: "subscribe", queue, ack: "manual", ...wire, from}, (answer) => {
      subscription.sub = answer.sub; // before the next frame: its first `deliver` may be in the same read
    });
  }

  unsubscribe({sub}) {
    return sub === null ? null : this.#request({type: "unsubscribe", sub}).catch(() => {});
  }

  credit({sub}, n) {
    this.#send(JSON.stringify({type: "credit", sub, n}));
  }

  /** @param {"ack" | "nack" | "extend"} type */
  settle(type, {queue, sub}, receipts, fields = {}) {
    return this.#request({type, queue, sub: sub ?? undefined, receipts, ...fields});
  }

  publish(queue, texts) {
    const name = JSON.stringify(queue);
    return this.#requestText((id) => `{"type":"publish","id":${id},"queue":${name},"messages":[${texts}]}`);
  }

  refresh(token) {
    return this.#request({type: "refresh", token});
  }

  /** Only the server pings; twice its period without a word means the connection is gone. */
  check(now) {
    const silentAt = this.#heardAt + 2 * this.#pingMs + this.#world.limits.silenceGraceMs;
    if (now > silentAt) this.fail(disconnected("the server fell silent"));
  }

  close() {
    this.#socket.close(1000);
    this.#over(disconnected("closed by the client"));
  }

  /** Ends it as far as a page can: a peer that is still there gets a close frame all the same. */
  fail(error) {
    if (!this.#isOver) this.#socket.close(3000, "reconnect");
    this.#over(error);
  }

  #request(frame, early) {
    return this.#requestText((id) => JSON.stringify({...frame, id}), early);
  }

  #requestText(write, early) {
    if (this.#isOver) return Promise.reject(disconnected("the connection is gone"));
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#requests.set(id, {resolve, reject, early});
      this.#send(write(id));
    });
  }

  #send(text) {
    if (this.#isOver) return;
    this.#world.trace("out", text.startsWith('{"type":"refresh"') ? '{"type":"refresh","token":"…"}' : text);
    this.#socket.send(text);
  }

  #receive(text) {
    if (this.#isOver) return;
    this.#heardAt = Date.now();
    this.#world.trace("in", text);
    try {
      const frames = JSON.parse(text);
      (Array.isArray(frames) ? frames : [frames]).forEach((frame) => this.#dispatch(frame));
    } catch (error) {
      this.fail(disconnected(`a frame could not be read: ${error.message}`));
    }
  }

  #dispatch(frame) {
    if (frame.type === "ping") return this.#send('{"type":"pong"}');
    if (frame.type === "pong") return;
    if (frame.type === "connected") return this.#open(frame);
    const request = this.#requests.get(frame.id);
    if (frame.type === "ok" || (frame.type === "error" && request)) {
      this.#requests.delete(frame.id);
      if (frame.type === "error") return request.reject(PushqError.from(frame.problem));
      request?.early?.(frame);
      return request?.resolve(frame);
    }
    if (frame.type === "error") this.#problem = PushqError.from(frame.problem); // the reason, if a close follows
    this.#world.receive(frame);
  }

  #closed(code, reason) {
    const error = this.#problem ?? disconnected(`the connection closed with ${code}${reason && `: ${reason}`}`);
    const advice = closeAdvice(code);
    if (advice === "reconnect") this.#over(disconnected(error.detail, error.retryAfterMs));
    else this.#over(Object.assign(error, {advice}));
  }

  #over(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    const cut = disconnected(error.detail);
    this.#requests.forEach(({reject}) => reject(cut));
    this.#requests.clear();
    this.#end(error);
  }
}

/**
 * The verbs as HTTP requests, with one stream or poll per subscription turned into `deliver` frames. Any stream that
 * breaks ends the link: the client's one loop then waits, and starts every subscription again at its cursor.
 */
class FetchLink {
  #world; #held; #active = new Map(); #requests = new Set(); #end; #isOver = false; #nextSub = 1;
  publishFrames = 1; // one request at a time keeps the order of publishes
  session = null;

  static async open(world) {
    await world.token(true);
    const link = new FetchLink(world);
    world.begun(link);
    try {
      await link.#call("GET", "/v1/queues?limit=1", undefined, {timeoutMs: world.limits.openMs});
    } catch (error) {
      if (error.status === 401) error.advice = "stop";
      if (error.status !== 403) throw error; // 403: reached and known, only not allowed to list
    }
    return link;
  }

  constructor(world) {
    this.#world = world;
    this.#held = HeldConnections.to(world.base, world.limits.heldConnections);
    this.ended = new Promise((resolve) => (this.#end = resolve));
  }

  publish(queue, texts) {
    return this.#call("POST", `${path(queue)}/messages`, `{"messages":[${texts}]}`);
  }

  settle(type, {queue}, receipts, fields = {}) {
    return this.#call("POST", `${path(queue)}/${type}`, JSON.stringify({receipts, ...fields}));
  }

  credit() {} // an HTTP stream is held back by not being read

  refresh() {} // the next request carries the new token

  check(now) {
    const isSilent = [...this.#active.values()].some(({silentAt}) => now > silentAt);
    if (isSilent) this.fail(disconnected("the stream fell silent"));
  }

  /** Starts the stream or the polls; resolves when the server has answered for the first time. */
  async subscribe(subscription) {
    const facts = await this.#describe(subscription.queue);
    const abort = new AbortController();
    const flow = {sub: this.#nextSub++, abort, kind: facts.kind, silentAt: Infinity, isReady: false};
    const ready = new Promise((resolve, reject) => {
      flow.onReady = () => resolve((flow.isReady = true));
      flow.onRefused = reject;
    });
    this.#active.set(flow.sub, flow);
    subscription.sub = flow.sub;
    this.#flow(subscription, flow).catch((error) => this.#broke(flow, error));
    await ready;
    return {sub: flow.sub, visibility_timeout_ms: facts.visibility_timeout_ms};
  }

  unsubscribe({sub}) {
    this.#active.get(sub)?.abort.abort();
    this.#active.delete(sub);
  }

  close() {
    this.fail(disconnected("closed by the client"));
  }

  fail(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#active.forEach(({onRefused}) => onRefused(error));
    this.#active.forEach(({abort}) => abort.abort());
    this.#requests.forEach((abort) => abort.abort());
    this.#end(error);
  }

  /** The queue's kind and lease time. A key may consume and yet not view: then the defaults are assumed. */
  async #describe(queue) {
    try {
      return (await this.#call("GET", path(queue))).config ?? {};
    } catch (error) {
      if (error.status !== 403) throw error;
      return {};
    }
  }

  async #flow(subscription, flow) {
    const {name} = this.#world;
    if (name === "longpoll" || !this.#held.takeStream()) return this.#polls(subscription, flow);
    try {
      await this.#locate(subscription, flow);
      await (name === "sse" ? this.#stream(subscription, flow) : this.#source(subscription, flow));
    } finally {
      this.#held.giveStream();
    }
  }

  #broke(flow, error) {
    if (!this.#active.has(flow.sub) || this.#isOver) return;
    if (error.code === "disconnected" || error.status === 401) return this.fail(error);
    this.#active.delete(flow.sub);
    if (!flow.isReady) flow.onRefused(error);
    else this.#frame(flow, {type: "ended", problem: {...error, retry_after_ms: error.retryAfterMs}});
  }

  #frame(flow, frame) {
    this.#world.receive({...frame, sub: flow.sub});
  }

  /** Long-poll: ask for what there is room for. The first turn does not wait: it tells where a stream begins. */
  async #polls(subscription, flow) {
    this.#held.join();
    try {
      for (let waitMs = 0; !flow.abort.signal.aborted && !this.#isOver; ) {
        await subscription.untilRoom();
        const answer = await this.#poll(subscription, flow, waitMs);
        if (!answer) return;
        flow.onReady();
        const {resume = "complete", cursor} = answer;
        if (resume !== "complete") this.#frame(flow, {type: resume, cursor});
        this.#frame(flow, {type: "deliver", ...answer});
        waitMs = Math.min(this.#held.pollMs(this.#world.limits), waitMs * 4 || 1000);
      }
    } finally {
      this.#held.leave();
    }
  }

  async #poll(subscription, flow, waitMs) {
    await this.#held.takePoll();
    try {
      if (flow.abort.signal.aborted || this.#isOver) return null;
      const {queue, room, from, wire: {visibility_timeout_ms, group}} = subscription;
      const max = Math.max(1, Math.min(room, 1000));
      const body = JSON.stringify({max, wait_ms: waitMs, visibility_timeout_ms, group, from});
      const timeoutMs = waitMs + this.#world.limits.requestMs;
      return await this.#call("POST", `${path(queue)}/receive`, body, {timeoutMs, left: flow.abort.signal});
    } finally {
      this.#held.givePoll();
    }
  }

  /** Where "latest" is now: a stream that is cut before its first event would else begin anew at a later "latest". */
  async #locate(subscription, {kind}) {
    const {queue, cursor, wire: {from = "latest", group}} = subscription;
    if (kind !== "stream" || group || cursor !== null || from !== "latest") return;
    const answer = await this.#call("POST", `${path(queue)}/receive`, JSON.stringify({max: 1, wait_ms: 0, from}));
    subscription.cursor = answer.cursor ?? null;
  }

  async #stream(subscription, flow) {
    const {limits, trace} = this.#world;
    const resume = subscription.cursor === null ? {} : {"last-event-id": subscription.cursor};
    const url = this.#eventsUrl(subscription, flow);
    trace("out", `GET ${url}`);
    const headers = {accept: "text/event-stream", ...resume};
    const response = await this.#fetch(url, {headers, signal: flow.abort.signal});
    if (!response.ok) throw await problemOf(response);
    flow.onReady();
    const reader = response.body.getReader();
    const parser = new EventParser(limits.eventChars);
    const decoder = new TextDecoder();
    for (;;) {
      flow.silentAt = Infinity; // our own slowness is not the server's silence
      await subscription.untilRoom();
      flow.silentAt = Date.now() + 2 * limits.commentMs + limits.silenceGraceMs;
      const {value, done} = await reader.read().catch((error) => Promise.reject(disconnected(error.message)));
      if (done) throw disconnected("the stream ended");
      this.#events(flow, parser.push(decoder.decode(value, {stream: true})));
    }
  }

  /** EventSource cannot carry a header: each (re)connect trades the token for a one-use ticket. */
  async #source(subscription, flow) {
    const {queue, cursor} = subscription;
    const {ticket} = await this.#call("POST", "/v1/tickets", JSON.stringify({queue, scopes: [`consume:${queue}`]}));
    const url = this.#eventsUrl(subscription, flow, cursor === null ? {} : {last_event_id: cursor});
    this.#world.trace("out", `GET ${url}`);
    const source = new this.#world.EventSource(`${this.#world.base}${url}&ticket=${encodeURIComponent(ticket)}`);
    const take = ({type, data, lastEventId}) => this.#events(flow, [{event: type, data, id: lastEventId}]);
    ["message", "gap", "reset", "ended", "lost", "bye"].forEach((name) => source.addEventListener(name, take));
    try {
      await new Promise((_, reject) => {
        flow.abort.signal.addEventListener("abort", () => reject(disconnected("left")));
        source.onopen = () => flow.onReady();
        source.onerror = () => reject(disconnected("the stream ended")); // its own retry would show a spent ticket
      });
    } finally {
      source.close();
    }
  }

  /** A stream is held back by not being read, so it names no credit; where it goes on is told by the cursor alone. */
  #eventsUrl({queue, credit, cursor, wire}, {kind}, more = {}) {
    const from = wire.from && cursor === null ? fromText(wire.from) : undefined;
    const fields = {credit: kind === "stream" ? undefined : credit, ack: wire.ack, group: wire.group, from, ...more};
    const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== undefined));
    return `${path(queue)}/events?${query}`;
  }

  /** Neighbouring messages become one `deliver`. */
  #events(flow, events) {
    let messages = [];
    let cursor;
    const deliver = () => messages.length && this.#frame(flow, {type: "deliver", messages, cursor});
    for (const {event, data, id} of events) {
      this.#world.trace("in", `${event} ${data}`);
      const fields = data ? JSON.parse(data) : {};
      if (event === "message") {
        messages.push(fields);
        cursor = flow.kind === "work" ? undefined : id || cursor; // a work queue has no place to go on from
        continue;
      }
      deliver();
      messages = [];
      if (event !== "ended") this.#frame(flow, {...fields, type: event});
      else this.#ended(flow, fields.problem ?? fields);
    }
    deliver();
  }

  /** A token that has ended ends the stream and not the subscription: the next connection brings a new one. */
  #ended(flow, problem) {
    if (problem.code === "unauthenticated") return this.fail(PushqError.from(problem));
    this.#active.delete(flow.sub);
    this.#frame(flow, {type: "ended", problem});
  }

  /** One request and its JSON answer. One that found no server ends the link, unless its subscription had `left`. */
  async #call(method, target, body, {timeoutMs = this.#world.limits.requestMs, left} = {}) {
    if (this.#isOver) throw disconnected("the connection is gone");
    const abort = new AbortController();
    const leave = () => abort.abort();
    const timer = setTimeout(leave, timeoutMs);
    this.#requests.add(abort);
    left?.addEventListener("abort", leave);
    try {
      return await this.#answer(method, target, body, abort.signal);
    } catch (error) {
      if (error.code === "disconnected" && !left?.aborted) this.fail(error);
      throw error;
    } finally {
      clearTimeout(timer);
      this.#requests.delete(abort);
      left?.removeEventListener("abort", leave);
    }
  }

  async #answer(method, target, body, signal) {
    const {trace} = this.#world;
    trace("out", `${method} ${target} ${body ?? ""}`);
    const headers = body === undefined ? {} : {"content-type": "application/json"};
    const response = await this.#fetch(target, {method, body, signal, headers});
    if (!response.ok) throw await problemOf(response);
    const text = await response.text().catch((error) => Promise.reject(disconnected(error.message)));
    if (target !== "/v1/tickets") trace("in", `${response.status} ${text}`);
    return JSON.parse(text);
  }

  /** Sends the token along; one that the server no longer takes is replaced once. */
  async #fetch(target, {headers, ...request}, isSecond = false) {
    const token = await this.#world.token(isSecond);
    const authorization = token ? {authorization: `Bearer ${token}`} : {};
    const response = await this.#world
      .fetch(`${this.#world.base}${target}`, {...request, headers: {...headers, ...authorization}, cache: "no-store"})
      .catch((error) => Promise.reject(disconnected(error.message)));
    return response.status === 401 && !isSecond ? this.#fetch(target, {headers, ...request}, true) : response;
  }
}

/**
 * Connections to one host that a page holds open. A browser has six per host over HTTP/1.1, for everything: six open
 * streams would leave none for a publish or an ack. Streams take all but one of ours; subscriptions beyond that poll,
 * and take turns at it.
 */
class HeldConnections {
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

/** Parses `text/event-stream` (WHATWG HTML, 9.2.6) from pieces cut anywhere. */
export class EventParser {
  #charsMax; #rest = ""; #isFirst = true; #afterCr = false;
  #event = ""; #data = []; #size = 0; #id = "";

  constructor(charsMax = LIMITS.eventChars) {
    this.#charsMax = charsMax;
  }

  /** @param {string} text @returns {{event: string, data: string, id: string}[]} the events it completes */
  push(text) {
    if (this.#isFirst && text) {
      this.#isFirst = false;
      text = text.replace(/^\uFEFF/, "");
    }
    if (this.#afterCr && text) {
      this.#afterCr = false;
      text = text.replace(/^\n/, ""); // the second half of a CRLF that was cut in two
    }
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#afterCr = text.endsWith("\r");
    this.#rest = lines.pop();
    const events = lines.map((line) => this.#line(line)).filter(Boolean);
    if (this.#size + this.#rest.length > this.#charsMax) throw disconnected(`an event exceeds ${this.#charsMax} characters`);
    return events;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (name === "event") this.#event = value;
    else if (name === "data") this.#add(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #add(value) {
    this.#data.push(value);
    this.#size += value.length + 1;
  }

  #dispatch() {
    const event = {event: this.#event || "message", data: this.#data.join("\n"), id: this.#id};
    const isEmpty = !this.#data.length;
    this.#event = "";
    this.#data = [];
    this.#size = 0;
    return isEmpty ? null : event;
  }
}

const path = (queue) => `/v1/queues/${encodeURIComponent(queue)}`;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for `promise`, at most `ms`. */
async function within(ms, promise) {
  let timer;
  await Promise.race([promise, new Promise((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}

/** `from` as the query parameter of an SSE stream. */
function fromText(from) {
  if (typeof from === "string") return from;
  const [[name, value]] = Object.entries(from);
  return `${name}:${value}`;
}

async function problemOf(response) {
  const problem = await response.json().catch(() => null);
  if (problem?.code) return PushqError.from({...problem, status: response.status});
  // No problem document: a proxy spoke, the server behind it is away.
  const {status} = response;
  return status >= 502 ? disconnected(`HTTP ${status}`) : new PushqError("internal", `HTTP ${status}`, {status});
}

/** 128 random bits; `crypto.randomUUID` is missing on pages served without TLS. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function decodeBase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

function encodeBody(body, {content_type = "application/octet-stream"}) {
  if (!(body instanceof Uint8Array)) return {body: body === undefined ? null : body};
  let binary = "";
  for (let at = 0; at < body.length; at += 0x8000) binary += String.fromCharCode(...body.subarray(at, at + 0x8000));
  return {body_base64: btoa(binary), content_type};
}

/** Runs `action` once after this turn of the event loop, however often asked. Hidden tabs throttle timers, not this. */
function oncePerTurn(action) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    nextTurn(() => {
      isAsked = false;
      action();
    });
  };
}

const nextTurn = globalThis.setImmediate ?? (() => {
  const {port1, port2} = new MessageChannel();
  const actions = [];
  port1.onmessage = () => actions.shift()();
  return (action) => {
    actions.push(action);
    port2.postMessage(null);
  };
})();
