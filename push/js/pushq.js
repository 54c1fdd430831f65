// Made from push/js/src by `python -m tests.support.joined_js`: change it there.
/**
 * Pushq for browsers and Node: the far end of a message's path, where a page publishes, is pushed to, and acknowledges.
 *
 *     const pushq = connect({url: location.origin, token: async () => (await fetch("/my/token")).text()});
 *     const {id, seq} = await pushq.publish("orders", {item: 7}, {key: "customer-1", delayMs: 5_000});
 *     pushq.subscribe("orders", {credit: 16}, async ({body}) => handle(body)); // resolved = ack, thrown = nack
 *     const {body} = await pushq.request("prices", {item: 7}, {timeoutMs: 2_000});
 *
 * A page imports one file, as it is, without a build: it is joined from those in `src`. They are, from the outside in:
 *
 *     client, session                 what a page holds, and the loop that connects, carries, waits, and connects again
 *     message, subscription           in the user's hands; behind them consumer, lines, delivery, settling
 *     publisher, numbering, clock     from a call to its confirmation, and its place in the order
 *     replies                         who waits for which reply
 *     transports/websocket, …/http    the same verbs, the same frames; beside them api, …/events, …/connections
 *     options, arguments, bodies      what the functions take, and refuse; outgoing: how it travels
 *     errors, backoff, credential     whose turn it is, and when again
 *     config, timers, ids             every limit by name; what all of these use
 *
 * Both links (one WebSocket; SSE, EventSource or long-poll over fetch) hand on the same frames, so nothing above them
 * knows which one is in use.
 *
 * Delivery is at least once in both directions unless the queue says otherwise: a publish that was cut is sent again
 * as the same message (`id`, number, stamp), a message whose ack was cut is delivered again with `attempt` 2.
 *
 * Names: what the server sent keeps the wire's spelling (`message.published_at`), and can be read in camelCase too;
 * options may be given either way (`delayMs`, `delay_ms`). `pushq.d.ts` declares all that is public.
 */

// --- config.js

/** Every bound of this module by name; `connect({limits: {…}})` replaces single ones. */
export const LIMITS = Object.freeze({
  publishBufferMessages: 10_000, // unconfirmed and waiting together; beyond it publish rejects with `buffer-full`
  publishBufferChars: 16 * 1024 * 1024,
  publishFrameMessages: 100,
  publishFrameChars: 1024 * 1024, // at most 3 MiB as UTF-8: below the 4 MiB at which the server closes for good
  messageBytes: 3 * 1024 * 1024, // of one message as JSON; refused here for the same reason
  publishWindowMessages: 1_000, // sent and not yet confirmed
  publishTimeoutMs: 60_000,
  publishGraceMs: 1_000, // for an answer on its way when the time is over that `publish` was given
  publishApartMs: 100, // messages share a frame, and the time of the first, when their times end so close together
  settleFrameReceipts: 1_000,
  creditReturnedAt: 0.5, // credit that no receipt gives back is returned when this part of it is used up
  streamBacklogMessages: 1_000, // received and not yet handled; beyond it a stream goes on later from its cursor
  subscriptionCredit: 64,
  replyTimeoutMs: 30_000,
  replyTtlMs: 60_000, // of a reply that nobody fetched, in the queue that `request` makes
  requestsWaiting: 10_000, // for their replies
  replyCredit: 1_000,
  clockAheadMs: 500, // a stamp further ahead than this does not move our clock: servers do not believe it either
  queuesRemembered: 10_000, // whose numbers are counted each by itself
  visibilityTimeoutMs: 30_000, // assumed where neither the caller nor the server names the queue's
  maxHandlerMs: 300_000,
  retryBaseMs: 1_000, // after a handler threw, doubled with each attempt, where the queue has no back-off; 0: at once
  retryCapMs: 60_000,
  openMs: 8_000,
  requestMs: 30_000,
  closeMs: 5_000,
  pollWaitMs: 20_000,
  pollTurnMs: 500, // the wait of a poll while others queue for its connection
  pollLeaveMs: 200, // what a poll that is left brings within that goes back
  pollLastMs: 2_000, // and on the last connection there is: the next subscription may need it
  heldConnections: 4, // of a browser's six per host: two stay free for publishes and acks
  eventChars: 4 * 1024 * 1024, // of one event of a stream
  silenceGraceMs: 5_000,
  pingMs: 25_000, // assumed until `connected` names the server's
  commentMs: 15_000, // an SSE stream says something this often
  backoffBaseMs: 500,
  backoffCapMs: 20_000,
  askedWaitMs: 120_000, // of what a server or a proxy asks: of a longer wait, between half of this and all is kept
  stableMs: 5_000, // a connection that lived this long starts the back-off again
  transportFailures: 3, // of a transport that has worked before, until the next one is tried
  refreshAheadMs: 60_000, // a token is replaced so long before it ends, or at half its life
  refreshRetryMs: 5_000,
  tickMs: 1_000,
});

const REASON_CHARS_MAX = 256; // of a nack
const CREDIT_MAX = 10_000; // of a subscription; over HTTP the server may not hear of it
const TIMER_MS_MAX = 2 ** 31 - 1; // a longer timer fires at once

// --- errors.js

const RETRIABLE = new Set([
  "disconnected", "rate-limited", "too-many-connections", "not-leader", "unavailable", "overloaded", "draining",
  "not-durable", "outcome-unknown", "request-timeout", "request-in-progress",
]);
const LEAVES_OPEN = new Set(["disconnected", "outcome-unknown", "internal"]); // it may have been done

/**
 * An error with a stable `code`: the server's problem, or one of ours: `disconnected`, `timeout`, `buffer-full`,
 * `closed`, `already-settled`, `no-reply-to`, and those of the classes below. `retriable`: the same may succeed later.
 */
export class PushqError extends Error {
  /**
   * @param {string} code @param {string} detail
   * @param {{status?: number, retryAfterMs?: number, errors?: object[]}} [more]
   */
  constructor(code, detail, {status = 0, retryAfterMs = 0, errors = []} = {}) {
    super(`${detail} (${code})`);
    const retriable = RETRIABLE.has(code);
    Object.assign(this, {name: new.target.name, code, detail, status, retryAfterMs, errors, retriable});
  }

  /** @param {object} problem as RFC 9457 and the API describe it */
  static from(problem) {
    const {code = "internal", detail = problem.title ?? "the server gave no detail", status, errors} = problem;
    return new PushqError(code, detail, {status, errors, retryAfterMs: problem.retry_after_ms});
  }
}

/** Nobody replied in time. `isStored`: the request lies in its queue, or did; without it that is not known. */
export class RequestTimeout extends PushqError {
  /** @param {string} queue @param {number} timeoutMs @param {boolean} isStored */
  constructor(queue, timeoutMs, isStored) {
    const request = isStored ? "the request was stored" : "the request was not confirmed";
    super("request-timeout", `queue "${queue}": no reply within ${timeoutMs} ms; ${request}`);
    Object.assign(this, {queue, timeoutMs, isStored});
  }
}

/** `request` has no queue for the replies, and may not make one; the message says what would help. */
export class NoReplyQueue extends PushqError {
  /** @param {string} detail @param {PushqError} cause the server's refusal */
  constructor(detail, cause) {
    super("no-reply-queue", detail, {status: cause.status});
    this.cause = cause;
  }
}

/** The lease of a message had ended before it was settled: somebody else may have the message. */
export class LeaseLost extends PushqError {
  /** @param {string} queue @param {string} verdict @param {{id: string, attempt: number}} message */
  constructor(queue, verdict, {id, attempt}) {
    super("stale-receipt", `queue "${queue}": ${verdict} of message ${id}, attempt ${attempt}, came after its lease had expired`);
  }
}

const disconnected = (detail, retryAfterMs = 0) => new PushqError("disconnected", detail, {retryAfterMs});
const closed = () => new PushqError("closed", "this client or subscription is closed");

/** What a receipt's result says went wrong, or null. */
function errorOf({ok = false, error = "stale-receipt"} = {}) {
  if (ok) return null;
  return PushqError.from(typeof error === "string" ? {code: error, detail: error} : error);
}

// --- backoff.js

/** What to keep of a wait that was asked for: all of it, or of one above the limit between half of that and all. */
export function askedMs(ms, random, {askedWaitMs} = LIMITS) {
  return ms <= askedWaitMs ? ms : askedWaitMs * (0.5 + random / 2);
}

/** What the server asks of this client, then full jitter: anywhere below 0.5 s·2^n, capped. `random` is in [0, 1). */
export function backoffMs(failures, random, retryAfterMs = 0, limits = LIMITS) {
  const windowMs = Math.min(limits.backoffCapMs, limits.backoffBaseMs * 2 ** Math.min(failures, 30));
  return askedMs(retryAfterMs, random, limits) + random * windowMs;
}

/** What a close code advises: 4500–4999 stop; 4401 come back with a new token; everything else come back. */
export function closeAdvice(code) {
  if (code >= 4500 && code <= 4999) return "stop";
  return code === 4401 ? "refresh" : "reconnect";
}

/** How long a message waits whose handler threw: 1 s·2^(attempt−1), capped, and of that between half and all. */
export function retryMs(attempt, random, limits = LIMITS) {
  const windowMs = Math.min(limits.retryCapMs, limits.retryBaseMs * 2 ** Math.min(attempt - 1, 30));
  return Math.ceil(windowMs * (0.5 + random / 2));
}

// --- timers.js

let setBackMs = 0;
let latestMs = 0;

/** The time that waits and leases go by: a computer's clock that is set back must not make them last until it has caught up. */
const steadyMs = () => {
  const ms = Date.now() + setBackMs;
  setBackMs += Math.max(0, latestMs - ms);
  return (latestMs = Math.max(latestMs, ms));
};

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for `promise`, at most `ms`. */
async function within(ms, promise) {
  let timer;
  await Promise.race([promise, new Promise((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
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

// --- credential.js

/** When a token ends, in ms since 1970: as its callback says, else a JWT's own `exp`; Infinity when neither tells. */
export function tokenExpiry(given) {
  const {token, expires_at} = typeof given === "object" && given !== null ? given : {token: given};
  const toldMs = expires_at ? Date.parse(expires_at) : NaN;
  if (!Number.isNaN(toldMs)) return toldMs;
  const payload = typeof token === "string" && token.split(".").length === 3 ? token.split(".")[1] : null;
  try {
    const {exp} = payload ? JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/"))) : {};
    return typeof exp === "number" ? exp * 1000 : Infinity;
  } catch {
    return Infinity;
  }
}

/** The token in use, and how the next one is had: `options.token` is one, or a function that gives one. */
class Credential {
  #options; #limits; #tellSlow; #token = null; #expiry = Infinity; #refreshAt = Infinity;

  /** `tellSlow` is called with the error where the function takes its time. */
  constructor(options, limits, tellSlow) {
    this.#options = options;
    this.#limits = limits;
    this.#tellSlow = tellSlow;
  }

  /** The token to use now; a `fresh` one is asked for in any case. */
  async current(fresh) {
    if (fresh || this.#token === null || Date.now() >= this.#expiry) {
      const given = await this.#ask(this.#options.token);
      this.#token = (typeof given === "object" ? given?.token : given) ?? null;
      this.#expiry = given ? tokenExpiry(given) : Infinity;
      const leftMs = this.#expiry - Date.now(); // none at all by a computer's clock that is ahead
      const {refreshAheadMs, refreshRetryMs} = this.#limits;
      const usedMs = leftMs <= 0 ? refreshRetryMs : leftMs - Math.min(refreshAheadMs, leftMs / 2);
      this.#refreshAt = steadyMs() + usedMs;
    }
    return this.#token;
  }

  /** Should the one in use be replaced by now? */
  isDue(now) {
    return now >= this.#refreshAt;
  }

  /** Tells the link of a fresh one; where that fails, it is due again a little later. */
  async renew(link) {
    this.#refreshAt = Infinity; // until the callback has answered, so that one refresh runs at a time
    try {
      await link.refresh(await this.current(true));
    } catch (error) {
      this.#refreshAt = Math.min(this.#refreshAt, steadyMs() + this.#limits.refreshRetryMs);
      throw error;
    }
  }

  /** One that is slow is told, and waited for all the same: somebody may have to sign in. */
  async #ask(token) {
    if (typeof token !== "function") return token;
    const {openMs} = this.#limits;
    const slow = () => this.#tellSlow(disconnected(`the function that gives the token has not answered for ${openMs} ms`));
    const timer = setTimeout(slow, openMs);
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
}

// --- clock.js

/**
 * A hybrid logical clock (Kulkarni et al., 2014): stamps that only rise, and that come after every stamp seen. A stamp
 * is in microseconds since 1970: the computer's milliseconds × 1000, plus 0 to 999 for those taken in the same one.
 */
export class HybridClock {
  #lastUs = 0; #aheadMs;

  constructor(aheadMs = LIMITS.clockAheadMs) {
    this.#aheadMs = aheadMs;
  }

  /** The next stamp. The computer's clock may jump as it likes. @param {number} nowMs @returns {number} */
  tick(nowMs) {
    this.#lastUs = Math.max(nowMs * 1000, this.#lastUs + 1);
    return this.#lastUs;
  }

  /** Takes note of another's stamp; false for one so far ahead that a broken clock would carry all others along. */
  merge(stampUs, nowMs) {
    if (!(stampUs <= (nowMs + this.#aheadMs) * 1000)) return false; // NaN too
    this.#lastUs = Math.max(this.#lastUs, stampUs);
    return true;
  }

  /** As RFC 3339: three digits for a whole millisecond, else six. @param {number} stampUs @returns {string} */
  static format(stampUs) {
    const text = new Date(Math.floor(stampUs / 1000)).toISOString();
    const logical = stampUs % 1000;
    return logical ? `${text.slice(0, -1)}${String(logical).padStart(3, "0")}Z` : text;
  }

  /** In microseconds; NaN for what is no time with a zone. @param {string} text @returns {number} */
  static parse(text) {
    const [, seconds, fraction = "", zone] = /^(.+?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/i.exec(text) ?? [];
    return Date.parse(`${seconds}${zone}`) * 1000 + Number(fraction.slice(0, 6).padEnd(6, "0"));
  }
}

// --- bodies.js

function decodeBase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

function encodeBody(body, {content_type = "application/octet-stream"}) {
  if (!isBytes(body)) return {body: body === undefined ? null : body};
  body = ArrayBuffer.isView(body) ? new Uint8Array(body.buffer, body.byteOffset, body.byteLength) : new Uint8Array(body);
  let binary = "";
  for (let at = 0; at < body.length; at += 0x8000) binary += String.fromCharCode(...body.subarray(at, at + 0x8000));
  return {body_base64: btoa(binary), content_type};
}

function isBytes(value) {
  return value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

/** Throws for what JSON would store as something else: `JSON.stringify` makes NaN `null` and bytes an object. What it
 * wrote tells quickly whether either can be in there. @param {string} text @param {any} body */
function refuseUnfit(text, body) {
  refuseHalves(text);
  if (isBytes(body) || !/null|\{\}|\{"0":|"type":"Buffer"/.test(text)) return;
  JSON.stringify(body, function (key, value) {
    if (isBytes(this[key])) value = this[key]; // Node's Buffer says of itself what JSON is to make of it
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new PushqError("invalid-request", "NaN and infinity have no JSON representation; send null or a string instead");
    }
    if (isBytes(value)) {
      throw new PushqError(
        "invalid-request",
        "bytes inside a value have no JSON representation; send them as base64 text, or the whole body as bytes",
      );
    }
    return value;
  });
}

/** Throws for half a surrogate pair, which JSON writes as an escape: the server would close the connection for it. */
function refuseHalves(text) {
  if (!/\\ud[89a-f]/.test(text) || !/\\ud[89a-f]/.test(text.replaceAll("\\\\", ""))) return;
  throw new PushqError("invalid-request", "the string contains an unpaired surrogate, such as half of an emoji");
}

// --- message.js

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

// --- subscription.js

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

// --- transports/events.js

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
    const size = this.#size + this.#rest.length;
    if (size > this.#charsMax) throw disconnected(`an event exceeds ${this.#charsMax} characters`);
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

/** `from` as the query parameter of an SSE stream. */
function fromText(from) {
  if (typeof from === "string") return from;
  const [[name, value]] = Object.entries(from);
  return `${name}:${value}`;
}

/** A message of an event; of one whose text is broken, what tells which it is. */
function messageOf(data, id) {
  try {
    return JSON.parse(data);
  } catch (unread) {
    const [, receipt = null] = /"receipt":"([^"]+)"/.exec(data) ?? [];
    return {id, receipt, unread};
  }
}

// --- api.js

const CODES = Object.freeze({ // of a status that comes without a problem document
  401: "unauthenticated", 403: "forbidden", 404: "not-found", 409: "conflict", 413: "message-too-large", 429: "rate-limited",
});

/** The HTTP API as one client may use it: its token in a header, problems as errors. */
class Http {
  #base; #fetch; #token; #trace;

  constructor({base, fetch, token, trace}) {
    this.#base = base;
    this.#fetch = fetch;
    this.#token = token;
    this.#trace = trace;
  }

  /** One request and its JSON answer. */
  async call(method, target, body, signal, more = {}) {
    this.#trace("out", `${method} ${target} ${body ?? ""}`);
    const headers = body === undefined ? more : {"content-type": "application/json", ...more};
    const response = await this.open(target, {method, body, signal, headers});
    const text = await response.text().catch((error) => Promise.reject(disconnected(error.message)));
    if (target !== "/v1/tickets") this.#trace("in", `${response.status} ${text}`);
    return parsed(text, this.#base);
  }

  /** An answer whose body is still to be read. A token that the server no longer takes is replaced once. */
  async open(target, request, isSecond = false) {
    const token = await this.#token(isSecond);
    const headers = token ? {...request.headers, authorization: `Bearer ${token}`} : request.headers;
    const response = await this.#fetch(`${this.#base}${target}`, {...request, headers, cache: "no-store"})
      .catch((error) => Promise.reject(disconnected(`no response from ${this.#base}: ${error.cause?.message || error.message}`)));
    if (response.status === 401 && !isSecond) return this.open(target, request, true);
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}

const path = (queue) => `/v1/queues/${encodeURIComponent(queue)}`;

async function problemOf(response) {
  const {status} = response;
  const problem = await response.json().catch(() => null);
  const [seconds] = /^\d{1,9}$/.exec(response.headers.get("retry-after") ?? "") ?? [0];
  const retryAfterMs = problem?.retry_after_ms ?? seconds * 1000;
  if (problem?.code) return PushqError.from({...problem, status, retry_after_ms: retryAfterMs});
  // No problem document: a proxy spoke, and of 502 to 504 the server behind it is away.
  const detail = `HTTP ${status} without a problem document`;
  if (status >= 502) return disconnected(detail, retryAfterMs);
  const code = CODES[status] ?? (status >= 500 ? "internal" : "invalid-request");
  return new PushqError(code, detail, {status, retryAfterMs});
}

/** An answer's JSON. Another page in its place (of a proxy, or to sign in) is as good as none. */
function parsed(text, base) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw disconnected(`an answer of ${base} could not be read: ${error.message}`);
  }
}

/** A string of a structured field (RFC 9651). */
function quoted(text) {
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

// --- arguments.js

function checkQueue(queue) {
  if (typeof queue !== "string") throw new PushqError("invalid-request", `the queue name must be a string, not ${queue}`);
  refuseHalves(JSON.stringify(queue));
  if (/^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/.test(queue)) return; // in a URL "a/b" or ".." may be something else
  const rule = "use 1 to 128 characters from A-Z a-z 0-9 _ . -, starting with a letter or digit";
  throw new PushqError("invalid-request", `invalid queue name "${queue.slice(0, 200)}": ${rule}`);
}

function checkTimeout(timeoutMs) {
  if (timeoutMs === undefined || (Number.isInteger(timeoutMs) && timeoutMs >= 1 && timeoutMs <= 60_000)) return;
  throw new PushqError("invalid-request", `timeoutMs must be between 1 and 60000, not ${timeoutMs}`);
}

function checkCredit(credit) {
  if (credit === undefined || (Number.isInteger(credit) && credit > 0 && credit <= CREDIT_MAX)) return;
  throw new PushqError("invalid-request", `credit must be a whole number between 1 and ${CREDIT_MAX}, not ${credit}`);
}

function checkAck(ack) {
  if ([undefined, "manual", "auto"].includes(ack)) return;
  throw new PushqError("invalid-request", `ack must be "manual" or "auto", not ${ack}`);
}

/** The context of a message, or undefined. Another than the first of its frame starts a new one. */
function checkedTrace(traceparent, tracestate) {
  if (traceparent === undefined && tracestate === undefined) return undefined;
  const isTrace = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/.test(traceparent);
  if (!isTrace) throw new PushqError("invalid-request", "traceparent must be 00-TRACE-SPAN-FLAGS in hexadecimal digits");
  if (tracestate !== undefined && !/^[ -~]{1,512}$/.test(tracestate)) {
    throw new PushqError("invalid-request", "tracestate must have 1 to 512 printable ASCII characters");
  }
  return {traceparent, tracestate};
}

function isSameTrace(one, other) {
  return one?.traceparent === other?.traceparent && one?.tracestate === other?.tracestate;
}

// --- outgoing.js

/** Options with another name on the wire. All others travel as given; the server refuses a message with unknown ones. */
const WIRE_NAMES = Object.freeze({
  contentType: "content_type",
  correlationId: "correlation_id",
  delayMs: "delay_ms",
  deliverAt: "deliver_at",
  idempotencyKey: "idempotency_key",
  producerSeq: "producer_seq",
  replyTo: "reply_to",
  timeoutMs: "timeout_ms",
  ttlMs: "ttl_ms",
  visibilityTimeoutMs: "visibility_timeout_ms",
});

/** Options as they travel: under the wire's names, times as RFC 3339. */
function toWire(options) {
  const wire = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new PushqError("invalid-request", `${name} is ${value}, which has no JSON representation`);
    }
    wire[WIRE_NAMES[name] ?? name] = value instanceof Date ? timeText(name, value) : value;
  }
  return wire;
}

function timeText(name, date) {
  if (Number.isNaN(date.getTime())) throw new PushqError("invalid-request", `${name} is not a valid date`);
  return date.toISOString();
}

// --- delivery.js

const PLAIN = Object.freeze({}); // a verdict that says no more

/** One message that is held here: its receipt, how long yet, what was decided about it. The first verdict counts. */
class Delivery {
  #consumer; #abort = null; #told = null;
  isLost = false; hasBegun = false; hasEnded = false; // its lease; its handler
  isInDoubt = false; // its session is gone, and its lease may be
  /** @type {"ack" | "nack" | null} */ verdict = null;
  /** Asked for with a nack. @type {number | undefined} */ delayMs;

  constructor(fields, consumer, now) {
    this.#consumer = consumer;
    this.receipt = fields.receipt ?? null;
    this.begunAt = now;
    this.extendAt = now + consumer.visibilityMs / 2;
    this.message = new Message(fields, this);
  }

  get queue() {
    return this.#consumer.queue;
  }

  get signal() {
    this.#abort ??= new AbortController();
    return this.#abort.signal;
  }

  lose() {
    this.isLost = true;
    this.signal; // an abort that nobody asked for yet is there when somebody does
    this.#abort.abort(new PushqError("stale-receipt", "the lease was lost"));
  }

  ack(publish) {
    if (publish === undefined) return this.settle("ack");
    if (!this.receipt) {
      const detail = `message ${this.message.id} has no receipt, so an ack cannot publish`;
      return Promise.reject(new PushqError("invalid-request", detail));
    }
    try {
      return this.settle("ack", {publish: this.#consumer.attached(publish)});
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Rejects what no frame can say: the verdicts of a turn leave together. */
  giveBack(options) {
    try {
      const fields = toWire(options);
      refuseHalves(JSON.stringify(fields));
      return this.settle("nack", fields);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  settle(verdict, fields = PLAIN) {
    if (!this.receipt) return Promise.resolve();
    if (this.verdict === verdict && !Object.keys(fields).length) return this.#told ?? Promise.resolve();
    if (this.verdict) {
      const detail = `message ${this.message.id}: ${verdict} after ${this.verdict}; the first verdict counts`;
      return Promise.reject(new PushqError("already-settled", detail));
    }
    this.delayMs = fields.delay_ms;
    this.#told = new Promise((resolve, reject) => this.conclude(verdict, fields, resolve, reject));
    this.#told.catch(() => {}); // told by events too, so a caller need not wait
    return this.#told;
  }

  /** The verdict that nobody waits for, unless somebody says what to call. */
  conclude(verdict, fields = PLAIN, resolve = ignore, reject = ignore) {
    this.verdict = verdict;
    this.#consumer.settle({delivery: this, verdict, fields, isRepeat: false, resolve, reject});
  }

  /** Its handler threw `error`: again after `delayMs`, or where that is 0 as the queue says. */
  fail(delayMs, error) {
    this.delayMs = delayMs || undefined;
    const reason = reasonOf(error);
    this.conclude("nack", delayMs ? {delay_ms: delayMs, reason} : {reason});
  }

  extend(ms) {
    if (!this.receipt) return Promise.resolve();
    const told = this.#consumer.lengthen(this, ms);
    told.catch(() => {});
    return told;
  }

  publish(...message) {
    return this.#consumer.publish(...message);
  }
}

/** What a handler threw, as a nack may carry it: no longer, and without halves of characters. */
function reasonOf(error) {
  let text;
  try {
    text = String(error); // of an Error: its name and its message
  } catch {
    text = "its message is not available";
  }
  return [...text].slice(0, REASON_CHARS_MAX).join("").replace(/\p{Surrogate}/gu, "\ufffd");
}

function ignore() {}

// --- lines.js

const EVERYTHING = Symbol("one line for all messages");
const SIDE_BY_SIDE = Symbol("no line");

/**
 * A line is what must not overtake: the messages of one key, or all of them. Its next message begins when the handler
 * of the one before is done; what is behind one that comes again goes back with it.
 */
class Lines {
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

// --- options.js

/**
 * @typedef {string | {token: string, expires_at?: string}} Token
 * @typedef {"ws" | "sse" | "eventsource" | "poll"} TransportName
 * @typedef {"earliest" | "latest" | {seq: number} | {time: string | Date} | {cursor: string}} From
 * @typedef {{id: string, seq: number, partition: number, duplicate: boolean}} Confirmation
 *
 * @typedef {object} ConnectOptions
 * @property {string} [url] base URL of the server; the page's own origin when left out
 * @property {string | (() => Token | Promise<Token>)} [token] API key or JWT; asked for on connect, and before its end
 * @property {TransportName[]} [transports] which to try, in this order
 * @property {string} [producer] who publishes, in messages that are numbered; random when left out
 * @property {number | Record<string, number>} [firstNumber] where a known producer's numbers go on, for each queue:
 *   what `nextNumbers` was when it ended; from 1 when left out
 * @property {boolean} [numberAlways] number and stamp messages also for queues that do not sort by it
 * @property {boolean | "auto"} [publishIds] whether a message without an id gets one; "auto", as when left out: unless
 *   its queue does not drop duplicates
 * @property {string} [replyQueue] where replies to `request` arrive: a work queue of this client alone, or a stream
 *   that several share
 * @property {Partial<typeof LIMITS>} [limits]
 * @property {(direction: "in" | "out", text: string) => void} [trace] sees every frame as text, tokens left out
 * @property {typeof WebSocket} [WebSocket] for a runtime without one (Node 20), and likewise `EventSource` and `fetch`
 * @property {typeof EventSource} [EventSource]
 * @property {typeof fetch} [fetch]
 *
 * @typedef {object} PublishOptions
 * @property {string} [id] told apart by it where the queue drops duplicates; random when left out
 * @property {string} [key] messages of one key stay in order on a `strict` queue
 * @property {number} [priority] 0 to the queue's `priorities` − 1, higher first
 * @property {number} [delayMs] delivered that much later
 * @property {Date | string} [deliverAt] delivered then
 * @property {number} [ttlMs] not delivered any more after that
 * @property {Record<string, string>} [headers]
 * @property {string} [contentType] of a body that is bytes
 * @property {string} [replyTo] the queue that waits for a reply
 * @property {string} [correlationId] what the reply has to carry
 * @property {string} [producer] these three number and stamp a message; left out, the client does where the queue asks
 * @property {number} [producerSeq]
 * @property {Date | string} [timestamp]
 * @property {string} [idempotencyKey] sent again with the same key, also by another page, nothing is stored
 * @property {string} [traceparent] W3C Trace Context, which comes back with each delivery
 * @property {string} [tracestate]
 * @property {number} [timeoutMs] how long this publish waits, 1 to 60,000 ms: what the server has not begun by then it
 *   never will, and nothing is sent again later; when left out, the server's time, and again for `publishTimeoutMs`
 *
 * @typedef {object} SubscribeOptions
 * @property {number} [credit] messages held here at once; a stream without it is sent as fast as it is read
 * @property {string} [group] consumer group of a stream: its members share the messages and acknowledge them
 * @property {From} [from] where a stream begins
 * @property {"manual" | "auto"} [ack] auto: a message is gone once it was sent (at most once)
 * @property {number} [visibilityTimeoutMs] lease of one message; extended while its handler runs
 * @property {number} [maxHandlerMs] how long a handler's lease is extended
 * @property {boolean | "key"} [inOrder] one after the other; "key": those of one key. Left out, the queue decides
 *
 * @typedef {PublishOptions & {timeoutMs?: number, replyQueue?: string}} RequestOptions
 * @typedef {{delayMs?: number, reason?: string}} NackOptions
 * @typedef {{publish?: {queue: string, messages: (PublishOptions & {body: unknown})[]}[]}} AckOptions
 */

const OTHER_WORDS = Object.freeze({key: "token", apiKey: "token"}); // for options
const CONNECT_OPTIONS = [
  "url", "token", "transports", "producer", "firstNumber", "numberAlways", "publishIds", "replyQueue", "limits", "trace",
  "WebSocket", "EventSource", "fetch",
];
const SUBSCRIBE_OPTIONS = [
  "credit", "group", "from", "ack", "visibilityTimeoutMs", "visibility_timeout_ms", "maxHandlerMs", "inOrder",
];

/** Throws for a name that is not known, with the nearest one. */
function checkNames(what, given, known) {
  for (const name of Object.keys(given)) {
    if (known.includes(name)) continue;
    const [near] = known.map((other) => [edits(name, other), other]).sort(([one], [other]) => one - other);
    const meant = OTHER_WORDS[name] ?? (near[0] <= Math.max(2, name.length / 3) ? near[1] : null);
    const hint = known.includes(meant) ? `; did you mean "${meant}"?` : "";
    throw new TypeError(`${what} has no option "${name}"${hint}`);
  }
}

/** How many letters to add, drop or change from one word to the other, upper or lower case alike. */
function edits(one, other) {
  let row = Array.from({length: other.length + 1}, (_, index) => index);
  for (const [index, letter] of [...one.toLowerCase()].entries()) {
    const next = [index + 1];
    [...other.toLowerCase()].forEach((wanted, at) => {
      next.push(Math.min(row[at] + (letter === wanted ? 0 : 1), row[at + 1] + 1, next[at] + 1));
    });
    row = next;
  }
  return row.at(-1);
}

// --- settling.js

/** From a verdict to its confirmation: those of one turn share a frame, and are told again after a cut. */
class Settler {
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

// --- consumer.js

/**
 * One queue's messages on their way to a handler. With a receipt they run side by side, as many as the credit, or in
 * lines where the order counts: of a key on a `strict` queue, of all messages in a stream's group. Without a receipt
 * they run one after the other. `ready` resolves when the server has the subscription, `closed` when it is over.
 */
class Consumer {
  #handler; #client; #starting = null; #stopping = false; #isOver = false; #isReady = false;
  #maxHandlerMs; #inOrderAsked; #isKeptInOrder = false; // as the caller asked; by the server, too
  #hasBackoff = false; #jitter = Math.random(); // the queue; for all that failed in one turn, so that they share a frame
  #refusals = []; // under way, of what came too late
  #held = new Map(); #lines; #backlog = []; #draining = false; // leased, by receipt; waiting in order
  #settler; #begun = []; #returned = 0; // what is told to the server: verdicts, beginnings, credit without a receipt
  #room = []; #idle = []; #resolveReady; #rejectReady; #finish; // who waits for what
  /** Of the last message taken in: where the next subscribe begins. @type {string | null} */ cursor = null;
  /** Our number on this connection. @type {number | null} */ sub = null;
  isTakenUp = false; // the session goes on after a cut, and the server does not know yet what of ours came

  constructor(queue, options, handler, client) {
    if (typeof handler !== "function") throw new TypeError("subscribe(queue, options, handler) requires a handler");
    const {maxHandlerMs = client.limits.maxHandlerMs, inOrder, ...rest} = options ?? {};
    checkNames("subscribe", rest, SUBSCRIBE_OPTIONS);
    const wire = toWire(rest);
    if (wire.from?.time instanceof Date) wire.from = toWire(wire.from);
    checkQueue(queue);
    refuseHalves(JSON.stringify(wire));
    checkCredit(wire.credit);
    checkAck(wire.ack);
    if (wire.group !== undefined) wire.credit ??= client.limits.subscriptionCredit;
    this.queue = queue;
    this.wire = wire;
    this.credit = wire.credit ?? client.limits.subscriptionCredit;
    this.visibilityMs = wire.visibility_timeout_ms ?? client.limits.visibilityTimeoutMs;
    this.#maxHandlerMs = maxHandlerMs;
    this.#inOrderAsked = inOrder;
    this.#handler = handler;
    this.#client = client;
    this.#settler = new Settler(this, client);
    this.#lines = new Lines({
      run: (delivery) => this.#run(delivery),
      drop: ({receipt}) => this.#held.delete(receipt),
      giveBack: (deliveries, failed) => this.#giveBack(deliveries, failed),
      done: () => this.#stir(),
    });
    this.ready = new Promise((resolve, reject) => ([this.#resolveReady, this.#rejectReady] = [resolve, reject]));
    this.ready.catch(() => {}); // told by the `ended` event too
    this.closed = new Promise((resolve) => (this.#finish = resolve));
  }

  /** Where the next subscribe begins. A group has its own place once it is there: to name one again would move it. */
  get from() {
    if (this.cursor !== null) return {cursor: this.cursor};
    return this.wire.group !== undefined && this.#isReady ? undefined : this.wire.from;
  }

  /** How many more messages fit. */
  get room() {
    return this.#stopping ? 0 : this.credit - this.#held.size - this.#backlog.length;
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
      this.#isReady = true;
      this.#resolveReady();
    } catch (error) {
      this.#refused(error, link);
    }
  }

  /** What the server says of the subscription, ahead of its first message. */
  accept({sub, cursor, visibility_timeout_ms, ordering, mode, retry_backoff_ms}) {
    this.sub = sub;
    this.#hasBackoff = retry_backoff_ms > 0;
    this.visibilityMs = this.wire.visibility_timeout_ms ?? visibility_timeout_ms ?? this.visibilityMs;
    this.#client.leases();
    const isRead = this.wire.group === undefined;
    if (isRead) this.cursor = cursor ?? this.cursor; // where "latest" was: a cut before the first message misses none
    const usual = isRead || mode === "leases" ? ordering === "strict" && "key" : true;
    this.#lines.inOrder = this.#inOrderAsked ?? usual;
    this.#isKeptInOrder = ordering === "strict" || mode === "offsets";
    // What is not extended soon comes again, and nothing newer until then.
    if (this.isTakenUp && mode === "offsets") this.#held.forEach((delivery) => (delivery.extendAt = 0));
    this.isTakenUp = false;
  }

  /** The session is gone. If only its gateway is, the leases go on: an extension tells, and of what runs the verdict. */
  doubt() {
    for (const delivery of this.#held.values()) {
      delivery.extendAt = 0;
      delivery.isInDoubt = delivery.hasBegun;
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
    const waitMs = askedMs(error.retryAfterMs, Math.random(), this.#client.limits);
    sleep(Math.max(waitMs, this.#client.limits.backoffBaseMs)).then(() => this.start());
  }

  receive(frame) {
    if (frame.type === "deliver") return this.#deliver(frame);
    if (frame.type === "lost") return this.lose(frame.receipts.flatMap((receipt) => this.#held.get(receipt) ?? []));
    if (frame.type === "gap") return this.#client.emit("gap", gapOf(frame));
    if (frame.type === "ended") return this.#refused(PushqError.from(frame.problem), this.#starting);
    if (frame.type !== "reset") return;
    if (this.wire.group === undefined) this.cursor = frame.cursor ?? this.cursor;
    this.#client.emit("reset", {cursor: frame.cursor});
  }

  // Taking in

  #deliver({messages, cursor}) {
    if (this.#stopping) return this.#refuse(messages);
    const isFull = this.#isFull(messages);
    const isRead = cursor !== undefined && this.wire.group === undefined;
    if (isFull && isRead) return this.#leave(); // they come again
    if (isRead) this.cursor = cursor;
    const now = steadyMs();
    for (const fields of messages) {
      if (fields.ordering?.timestamp) this.#client.saw(fields.ordering.timestamp);
      const delivery = this.#read(fields, now);
      if (!delivery) continue;
      if (!delivery.receipt) this.#backlog.push(delivery);
      else if (this.wire.ack === "auto") this.#acked(fields, now);
      else this.#admit(delivery);
    }
    if (isFull) this.#pause(); // these do not come again
    this.#drain();
  }

  /** What comes while it is being closed: nobody begins with that. On a socket it returns with the unsubscribe that follows. */
  #refuse(messages) {
    const link = this.#client.link();
    const receipts = messages.flatMap(({receipt}) => receipt ?? []);
    if (!link?.isPaced || !receipts.length) return;
    this.#refusals.push(link.settle("nack", this, receipts, {tried: false}).catch(() => {})); // else they run out
  }

  /** One that cannot be decoded goes back with the reason, and is told; its neighbours are delivered. */
  #read(fields, now) {
    try {
      if (fields.unread) throw fields.unread;
      return new Delivery(fields, this, now);
    } catch ({message: why}) {
      const {body_base64, unread, ...beside} = fields;
      const delivery = new Delivery(beside, this, now);
      const detail = `the consumer cannot decode it: ${why}`;
      delivery.hasEnded = true;
      if (delivery.receipt) delivery.conclude("nack", {reason: detail.slice(0, REASON_CHARS_MAX)});
      else this.#giveCredit();
      const error = new PushqError("undecodable", `message ${delivery.message.id}: ${detail}`);
      this.#client.emit("problem", {error, message: delivery.message});
      return null;
    }
  }

  #isFull(messages) {
    const size = this.#backlog.length + messages.length;
    return this.#backlog.length > 0 && !messages[0]?.receipt && size > this.#client.limits.streamBacklogMessages;
  }

  /** A stream that outruns its handler is left, and taken up again at the cursor when the backlog is done. */
  #leave() {
    this.#client.link()?.unsubscribe(this);
    this.sub = null;
    this.#starting = null;
  }

  /** So is a queue whose messages are settled as they are sent; but what is under way until the answer is taken in. */
  async #pause() {
    const link = this.#client.link();
    if (!link || link.isPaced || this.#starting !== link) return; // by not being read it is held back already
    this.#starting = "paused";
    await link.unsubscribe(this);
    if (this.#starting !== "paused") return;
    this.sub = null;
    this.#starting = null;
    if (!this.#draining) this.start();
  }

  /** Over HTTP every delivery has a receipt: an automatic ack is then ours to send. The handler sees none. */
  #acked(fields, now) {
    const delivery = new Delivery(fields, this, now);
    delivery.hasEnded = true;
    delivery.conclude("ack");
    this.#backlog.push(new Delivery({...fields, receipt: null}, this, now));
  }

  #admit(delivery) {
    this.#held.set(delivery.receipt, delivery);
    this.#lines.admit(delivery);
  }

  // Handling

  /** Nobody has begun with them, so it was no attempt; unless only the queue's back-off keeps them behind `failed`. */
  #giveBack(deliveries, failed) {
    const isBehind = failed && !failed.isLost && !this.#isKeptInOrder;
    const delay = isBehind && failed.delayMs !== undefined ? {delay_ms: failed.delayMs} : {};
    const fields = isBehind && failed.delayMs === undefined ? PLAIN : {tried: false, ...delay};
    for (const delivery of deliveries) {
      this.#held.delete(delivery.receipt);
      delivery.hasEnded = true;
      if (!delivery.isLost) delivery.conclude("nack", fields);
    }
  }

  async #run(delivery) {
    this.#begun.push(delivery);
    delivery.hasBegun = true;
    this.#client.soon();
    const failure = await this.#handle(delivery.message);
    delivery.hasEnded = true;
    this.#held.delete(delivery.receipt);
    if (!delivery.verdict && !failure) delivery.conclude("ack");
    else if (!delivery.verdict && !delivery.isLost) delivery.fail(this.#retryMs(delivery.message), failure.error);
    this.#stir();
  }

  /** A handler that always throws would else have all its attempts within a moment. */
  #retryMs({attempt = 1}) {
    return this.#hasBackoff ? 0 : retryMs(attempt, this.#jitter, this.#client.limits);
  }

  /** Never throws: what the handler throws is the caller's news and the message's nack. Null where it threw nothing. */
  async #handle(message) {
    try {
      await this.#handler(message);
      return null;
    } catch (error) {
      this.#client.emit("problem", {error, message});
      return {error};
    }
  }

  async #drain() {
    if (this.#draining) return;
    this.#draining = true;
    while (this.#backlog.length && !this.#isOver) {
      await this.#handle(this.#backlog[0].message);
      this.#backlog.shift();
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

  #stir() {
    this.#room.splice(0).forEach((resolve) => resolve());
    if (!this.#held.size && !this.#backlog.length) this.#idle.splice(0).forEach((resolve) => resolve());
  }

  // Settling

  /** Messages as they will travel with an ack. */
  attached(publish) {
    return this.#client.attached(publish);
  }

  publish(...message) {
    return this.#client.publish(...message);
  }

  settle(decision) {
    this.#settler.add(decision);
  }

  /** Sends what was decided since the last turn. */
  flush() {
    const link = this.#client.link();
    if (!link) return;
    this.#jitter = Math.random();
    if (this.sub !== null) this.#tellBegun(link);
    this.#settler.flush(link);
    if (!this.#returned || this.sub === null) return;
    link.credit(this, this.#returned);
    this.#returned = 0;
  }

  /** What a crash of ours would count as an attempt. A verdict says it by itself. */
  #tellBegun(link) {
    const begun = this.#begun.splice(0).filter(({verdict, isLost}) => !verdict && !isLost);
    if (begun.length) link.begin(this, begun.map(({receipt}) => receipt));
  }

  /** Their leases are gone. */
  lose(deliveries) {
    const lost = deliveries.filter((delivery) => !delivery.isLost);
    lost.forEach((delivery) => delivery.lose());
    if (lost.length) this.#client.emit("lost", {messages: lost.map(({message}) => message)});
  }

  // Leases

  /** Lengthens the leases whose half has passed, while their handlers may still run. */
  async extend(now) {
    const link = this.#client.link();
    if (!link || !this.visibilityMs) return;
    this.#lines.giveBackStuck(now, this.#maxHandlerMs);
    const due = [...this.#held.values()].filter((delivery) => this.#isDue(delivery, now));
    due.forEach((delivery) => (delivery.extendAt = now + this.visibilityMs / 2));
    while (due.length) {
      const deliveries = due.splice(0, this.#client.limits.settleFrameReceipts);
      const receipts = deliveries.map(({receipt}) => receipt);
      const lease = {visibility_timeout_ms: this.visibilityMs};
      const answer = await link.settle("extend", this, receipts, lease).catch(() => null); // again at the next half
      const isOk = (index) => answer?.results[index]?.ok;
      const isLost = ({receipt, isInDoubt}, index) => isOk(index) === false && !isInDoubt && this.#held.has(receipt);
      this.lose(deliveries.filter(isLost));
      deliveries.filter((_, index) => isOk(index)).forEach((delivery) => (delivery.isInDoubt = false));
    }
  }

  #isDue({isLost, verdict, extendAt, begunAt}, now) {
    return !isLost && !verdict && now >= extendAt && now - begunAt < this.#maxHandlerMs;
  }

  /** One lease as its handler asks; ours goes on at half a lease before that ends, and never shortens it. */
  async lengthen(delivery, ms) {
    const link = this.#client.link();
    if (!link) throw disconnected("there is no connection now");
    const {results} = await link.settle("extend", this, [delivery.receipt], {visibility_timeout_ms: ms});
    if (results[0]?.ok) {
      delivery.extendAt = steadyMs() + Math.max(ms / 2, ms - this.visibilityMs / 2);
      return;
    }
    this.lose([delivery]);
    throw new LeaseLost(this.queue, "extend", delivery.message);
  }

  // The end

  /** Starts no more handlers, lets the running ones finish, settles, leaves. */
  async close() {
    if (this.#stopping) return this.closed;
    this.#stopping = true;
    this.#lines.clear();
    if (!this.#held.size) this.#backlog.splice(1);
    if (this.#held.size || this.#backlog.length) await new Promise((resolve) => this.#idle.push(resolve));
    this.flush();
    await this.#settler.told();
    await this.#client.link()?.unsubscribe(this);
    await Promise.all(this.#refusals);
    this.end(null);
    return this.closed;
  }

  /** @param {PushqError | null} error null when the caller closed it */
  end(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.sub = null;
    this.lose([...this.#held.values()].filter(({verdict}) => !verdict)); // nothing that is said of them arrives any more
    this.#client.forget();
    if (error) this.#client.emit("ended", {error});
    this.#rejectReady(error ?? new PushqError("closed", `the subscription of "${this.queue}" was closed`));
    this.#settler.abandon(error ?? closed());
    this.#stir();
    this.#finish(error);
  }
}

/** Of a stream with several partitions a gap names the one that its ends belong to. */
function gapOf({from, to, partition}) {
  return partition === undefined ? {from, to} : {from, to, partition};
}

// --- ids.js

/** Random bytes as hex: 128 bits for an id. `crypto.randomUUID` is missing on pages served without TLS. */
function randomHex(bytes = 16) {
  const values = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(values, (value) => value.toString(16).padStart(2, "0")).join("");
}

// --- numbering.js

const OWN_FIELD = /^\/messages\/\d+\/(producer|producer_seq|timestamp)$/;

/**
 * Who publishes, the how-manieth message it is, and when: what a queue sequenced by `producer` or `clock` sorts by.
 * Each queue counts from 1. Answers say what a queue needs; until the first one, messages carry everything.
 */
class Numbering {
  #clock; #queuesMax; #first; #isAlways; #ids; #floor = 1; #queues = new Map(); // the longest unused first

  constructor(clock, queuesMax, options) {
    const {producer = randomHex(12), firstNumber = 1, numberAlways = false, publishIds = "auto"} = options;
    const numbers = typeof firstNumber === "number" ? [firstNumber] : Object.values(firstNumber);
    const wrong = numbers.find((number) => !Number.isSafeInteger(number) || number < 1);
    if (wrong !== undefined) throw new TypeError(`firstNumber must be at least 1, not ${wrong}`);
    this.producer = producer;
    this.#clock = clock;
    this.#queuesMax = queuesMax;
    this.#first = firstNumber;
    this.#isAlways = numberAlways;
    this.#ids = publishIds;
  }

  /** The next number of each queue that counts them. */
  get next() {
    const counted = [...this.#queues].filter(([, {sequencing}]) => sequencing !== "arrival" || this.#isAlways);
    return Object.fromEntries(counted.map(([queue, {next}]) => [queue, next]));
  }

  /** What is added to a message that leaves for the first time; `item` remembers its number and id. */
  fields(queue, item) {
    const {given} = item;
    const row = this.#row(queue);
    const fields = {};
    const isNamed = this.#ids === "auto" ? row.dedupe !== "none" : this.#ids;
    const hasKey = item.idempotencyKey !== undefined; // another id would be another message
    if (given.id === undefined && isNamed && !hasKey) fields.id = item.id ??= randomHex();
    if (row.sequencing === "arrival" && !this.#isAlways) return fields;
    if (given.producer === undefined && given.producer_seq === undefined) {
      item.number = row.next++;
      fields.producer = this.producer;
      fields.producer_seq = item.number;
    }
    if (given.timestamp === undefined) fields.timestamp = HybridClock.format(this.#clock.tick(Date.now()));
    return fields;
  }

  /** What an answer says of its queue; the queue may have been changed since the last one. */
  learn(queue, items, {sequencing, dedupe}) {
    const row = this.#row(queue);
    row.sequencing = sequencing;
    row.dedupe = dedupe;
    row.hasStored ||= sequencing !== "arrival" && items.some(({number}) => number !== null);
  }

  /**
   * None of these was stored. When no later number is out, theirs are the next ones again; else they stay unused, and
   * the server waits for them for its sort window.
   */
  takeBack(queue, items, error) {
    if (!error.status || LEAVES_OPEN.has(error.code)) return;
    const numbered = items.filter(({number}) => number !== null);
    const numbers = numbered.map(({number}) => number);
    const row = this.#row(queue);
    const first = Math.min(...numbers);
    const isTail = row.next - first === numbers.length && Math.max(...numbers) === row.next - 1;
    if (!isTail || numbered.some(({isUncertain}) => isUncertain)) return;
    row.next = first;
    numbered.forEach((item) => Object.assign(item, {number: null, text: null}));
  }

  /**
   * A refusal of nothing but the fields that we added, or left out: the server does not know them yet, or the queue's
   * `sequencing` was changed. True when the messages may go again in the other form, which each does once.
   */
  adapt(queue, items, error) {
    const {errors = []} = error;
    const isOurs = errors.length > 0 && errors.every(({pointer}) => OWN_FIELD.test(pointer));
    const brings = ({given}) => given.producer !== undefined || given.producer_seq !== undefined || given.timestamp;
    if (!isOurs || items.some((item) => item.isAdapted || brings(item))) return false;
    const row = this.#row(queue);
    const areNumbered = items.some(({number}) => number !== null);
    if (areNumbered && row.hasStored) return false; // it does know them: one is wrong
    row.sequencing = areNumbered ? "arrival" : undefined;
    this.takeBack(queue, items, error);
    items.forEach((item) => Object.assign(item, {isAdapted: true, number: null, text: null}));
    return true;
  }

  #row(queue) {
    const row = this.#queues.get(queue) ?? {next: this.#firstOf(queue), hasStored: false};
    this.#queues.delete(queue);
    this.#queues.set(queue, row);
    if (this.#queues.size > this.#queuesMax) this.#forgetOne();
    return row;
  }

  /** Its numbers go on where they cannot repeat: a gap is waited out, a number given twice would cost a message. */
  #forgetOne() {
    const [[queue, {next}]] = this.#queues;
    this.#queues.delete(queue);
    this.#floor = Math.max(this.#floor, next);
  }

  #firstOf(queue) {
    const first = typeof this.#first === "number" ? this.#first : this.#first[queue] ?? 1;
    return Math.max(first, this.#floor);
  }
}

// --- publisher.js

/** Gathers publishes of one turn into frames and holds each until the server has confirmed it, across reconnects. */
class Publisher {
  #limits; #link; #numbering; #problem; #why; #pump; #idle = []; #count = 0; #end = null;
  #items = new Set(); #chars = 0; #queues = new Map(); // all that are unconfirmed; those not in flight, by queue
  #inFlight = 0; #frames = 0; #alarm = null; #alarmAt = Infinity;

  constructor(limits, {link, numbering, problem, why}) {
    this.#why = why;
    this.#limits = limits;
    this.#link = link;
    this.#numbering = numbering;
    this.#problem = problem;
    this.#pump = oncePerTurn(() => this.pump());
  }

  /** Rejects what it cannot take, like everything that goes wrong later. */
  add(queue, body, options, patienceMs = this.#limits.publishTimeoutMs) {
    return new Promise((resolve, reject) => {
      if (this.#end) throw this.#end;
      checkQueue(queue);
      const {idempotency_key: idempotencyKey, timeout_ms: timeoutMs, ...others} = toWire(options);
      const {traceparent, tracestate, ...given} = others;
      if (idempotencyKey !== undefined && !/^[ -~]{1,255}$/.test(idempotencyKey)) {
        throw new PushqError("invalid-request", "idempotencyKey must have 1 to 255 printable ASCII characters");
      }
      const trace = checkedTrace(traceparent, tracestate);
      checkTimeout(timeoutMs);
      const bare = JSON.stringify({...given, ...encodeBody(body, given)});
      refuseUnfit(bare, body);
      this.#admit(bare);
      const until = steadyMs() + (timeoutMs ?? patienceMs);
      const state = {number: null, isSent: false, isInFlight: false, isUncertain: false, isAdapted: false, refusal: null};
      const isAlone = idempotencyKey !== undefined; // a key is a whole frame's
      const own = {given, bare, idempotencyKey, trace, isAlone, text: null, timeoutMs, until, resolve, reject};
      const item = {place: this.#count++, ...own, ...state};
      this.#items.add(item);
      this.#chars += bare.length;
      this.#waiting(queue).items.push(item);
      this.#watch(item);
      this.#pump();
    });
  }

  #admit(text) {
    const {publishBufferMessages, publishBufferChars} = this.#limits;
    this.#checkSize(text, "a message");
    if (this.#items.size < publishBufferMessages && this.#chars + text.length <= publishBufferChars) return;
    const detail = `${this.#items.size} messages of ${this.#chars} characters are waiting for the server`;
    throw new PushqError("buffer-full", detail);
  }

  #checkSize(text, what) {
    const {messageBytes} = this.#limits;
    if (text.length * 3 <= messageBytes || new TextEncoder().encode(text).length <= messageBytes) return;
    throw new PushqError("message-too-large", `${what} must have at most ${messageBytes} bytes`, {status: 413});
  }

  /** Messages that travel with an ack, as they will be sent however often that is. */
  attached(publish) {
    const frames = publish.map(({queue, messages}) => {
      checkQueue(queue);
      const one = ({body, ...options}) => {
        const given = toWire(options);
        const encoded = encodeBody(body, given);
        refuseUnfit(JSON.stringify(encoded), body);
        return {...given, ...encoded, ...this.#numbering.fields(queue, {given})};
      };
      return {queue, messages: messages.map(one)};
    });
    const text = JSON.stringify(frames);
    refuseHalves(text);
    this.#checkSize(text, "what is published with one ack");
    return JSON.parse(text); // a copy: the caller may go on changing the bodies
  }

  /** Resolves when nothing is unconfirmed. */
  idle() {
    return this.#items.size ? new Promise((resolve) => this.#idle.push(resolve)) : Promise.resolve();
  }

  pump() {
    const link = this.#link();
    while (link && this.#frames < link.publishFrames && this.#inFlight < this.#limits.publishWindowMessages) {
      const batch = this.#take(steadyMs());
      if (!batch) return;
      this.#send(link, batch);
    }
  }

  check(now) {
    for (const item of this.#items) {
      if (now >= this.#deadline(item)) this.#reject(item, lastWord(item, this.#why()));
      else this.#watch(item);
    }
    for (const entry of this.#queues.values()) entry.items = entry.items.filter((item) => this.#items.has(item));
    this.pump();
  }

  /** When nobody waits any more: the answer to what was sent in its time may come a little after it. */
  #deadline({timeoutMs, until, isInFlight}) {
    return timeoutMs !== undefined && isInFlight ? until + this.#limits.publishGraceMs : until;
  }

  /** A time of the caller's own is kept to the millisecond; the client's regular look at the clock is too rare. */
  #watch(item) {
    const at = this.#deadline(item);
    if (item.timeoutMs === undefined || at >= this.#alarmAt) return;
    clearTimeout(this.#alarm);
    this.#alarmAt = at;
    this.#alarm = setTimeout(() => {
      this.#alarmAt = Infinity;
      this.check(steadyMs());
    }, Math.max(1, at - steadyMs()));
    this.#alarm.unref?.();
  }

  /** Ends everything with this error, and whatever comes later. */
  abandon(error) {
    this.#end = error;
    clearTimeout(this.#alarm);
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
    for (let chars = items[0].bare.length; length < most; length += 1) {
      chars += items[length].bare.length;
      if (chars > publishFrameChars || items[0].isAlone || items[length].isAlone) break;
      if (!isSameTrace(items[0].trace, items[length].trace)) break;
      if (!this.#endTogether(items[0], items[length])) break;
    }
    return length;
  }

  /** May these share a frame, which has one time? So no message loses much of its own to its company. */
  #endTogether(one, other) {
    if (one.timeoutMs === undefined || one.timeoutMs !== other.timeoutMs) return one.timeoutMs === other.timeoutMs;
    return Math.abs(one.until - other.until) <= this.#limits.publishApartMs;
  }

  async #send(link, {queue, items}) {
    this.#inFlight += items.length;
    this.#frames += 1;
    items.forEach((item) => this.#complete(queue, item));
    try {
      const {idempotencyKey, trace} = items[0];
      const leftMs = items[0].timeoutMs && Math.max(1, Math.min(...items.map(({until}) => until)) - steadyMs());
      const answer = await link.publish(queue, items.map(({text}) => text), {idempotencyKey, trace, leftMs});
      this.#numbering.learn(queue, items, answer);
      this.#answered(queue, items, answer.messages);
    } catch (error) {
      this.#failed(queue, items, error);
    } finally {
      this.#inFlight -= items.length;
      this.#frames -= 1;
      this.pump();
    }
  }

  /** Number, stamp and id come with the first sending: a message that never leaves makes no gap. */
  #complete(queue, item) {
    item.isSent = true;
    item.isInFlight = true;
    this.#watch(item);
    if (item.text !== null) return;
    const fields = JSON.stringify(this.#numbering.fields(queue, item));
    item.text = fields === "{}" ? item.bare : `${item.bare.slice(0, -1)},${fields.slice(1)}`;
  }

  /** Each message stands alone. One that was refused for the moment goes again, as a whole frame would. */
  #answered(queue, items, answers) {
    const refused = [];
    items.forEach((item, index) => {
      const {error, ...confirmation} = answers[index] ?? {error: {detail: "the server gave no answer for it"}};
      if (error) refused.push([item, PushqError.from(typeof error === "string" ? {code: error} : error)]);
      else if (this.#forget(item)) item.resolve(confirmation);
    });
    for (const [item, error] of refused) {
      if (error.retriable) this.#again(queue, [item], error);
      else this.#numbering.takeBack(queue, [item], error);
      if (!error.retriable) this.#reject(item, error);
    }
  }

  #failed(queue, items, error) {
    if (error.retriable) return this.#again(queue, items, error);
    if (this.#numbering.adapt(queue, items, error)) return this.#again(queue, items);
    const faulty = this.#faulty(items, error);
    this.#numbering.takeBack(queue, items, error);
    faulty.forEach((own, item) => this.#reject(item, own));
    this.#again(queue, items.filter((item) => !faulty.has(item)));
  }

  /** Several `publish` calls share a frame: one wrong message must not fail its neighbours. */
  #faulty(items, error) {
    const faulty = new Map();
    const blame = (item, errors) => faulty.set(item, new PushqError(error.code, error.detail, {...error, errors}));
    for (const {pointer = "", detail} of items.length > 1 ? error.errors ?? [] : []) {
      const [, index, rest] = /^\/messages\/(\d+)(.*)$/.exec(pointer) ?? [];
      if (items[index]) blame(items[index], [...faulty.get(items[index])?.errors ?? [], {pointer: rest, detail}]);
    }
    if (faulty.size) return faulty;
    const isShared = items.length > 1 && [400, 413, 422].includes(error.status);
    items.forEach((item) => (isShared ? (item.isAlone = true) : faulty.set(item, error)));
    return faulty;
  }

  /** Once more, ahead of what is newer. Without an error at once. */
  #again(queue, items, error) {
    if (!items.length) return;
    items.forEach((item) => (item.isInFlight = false));
    const entry = this.#waiting(queue);
    entry.items.unshift(...items.filter((item) => this.#items.has(item)));
    entry.items.sort((a, b) => a.place - b.place);
    if (!error) return;
    if (LEAVES_OPEN.has(error.code)) items.forEach((item) => (item.isUncertain = true));
    const isOver = items.some(({timeoutMs, until}) => timeoutMs !== undefined && until <= steadyMs());
    if (error.code !== "disconnected") items.forEach((item) => (item.refusal = error));
    items.forEach((item) => this.#watch(item));
    if (error.code === "disconnected") return;
    this.#problem(error);
    const waitMs = askedMs(error.retryAfterMs, Math.random(), this.#limits);
    entry.pausedUntil = steadyMs() + Math.max(waitMs, this.#limits.backoffBaseMs);
    if (isOver) this.check(steadyMs());
  }

  #reject(item, error) {
    if (this.#forget(item)) item.reject(error);
  }

  #forget(item) {
    if (!this.#items.delete(item)) return false;
    this.#chars -= item.bare.length;
    if (!this.#items.size) this.#idle.splice(0).forEach((resolve) => resolve());
    return true;
  }
}

/** What one gets who waits no longer. A refusal counts only where no other try may have been stored. */
function lastWord(item, why) {
  const isTold = item.refusal && !item.isInFlight && (!item.isUncertain || LEAVES_OPEN.has(item.refusal.code));
  return isTold ? item.refusal : tooLate(item, why);
}

function tooLate({isSent}, why) {
  const outcome = isSent ? "the message may have been stored" : "the message was not sent";
  const reason = why ? `; not connected: ${why.detail}` : "";
  return new PushqError("timeout", `the server did not confirm in time; ${outcome}${reason}`);
}

// --- replies.js

const QUEUE_PART = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$/; // what may stand in the name of a queue

/** Who waits for which reply. A request is a message that names a queue and an id; the reply comes there, with it. */
class Requests {
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

// --- transports/connections.js

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

// --- transports/http.js

/**
 * The verbs as HTTP requests, with one stream or poll per subscription turned into `deliver` frames. Any stream that
 * breaks ends the link: the client's one loop then waits, and starts every subscription again at its cursor.
 */
class FetchLink {
  #world; #held; #active = new Map(); #requests = new Set(); #end; #isOver = false; #nextSub = 1;
  publishFrames = 1; // one request at a time keeps the order of publishes
  isPaced = true; // what is not read stays with the server
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

  publish(queue, texts, {idempotencyKey, trace, leftMs}) {
    const headers = {...trace};
    if (leftMs !== undefined) headers["Pushq-Timeout-Ms"] = String(leftMs);
    if (headers.tracestate === undefined) delete headers.tracestate;
    if (idempotencyKey !== undefined) headers["Idempotency-Key"] = quoted(idempotencyKey);
    const timeoutMs = this.#world.limits.requestMs + (leftMs ?? 0);
    return this.#call("POST", `${path(queue)}/messages`, `{"messages":[${texts}]}`, {headers, timeoutMs});
  }

  settle(type, {queue}, receipts, fields = {}) {
    return this.#call("POST", `${path(queue)}/${type}`, JSON.stringify({receipts, ...fields}));
  }

  begin() {} // over HTTP a delivery is an attempt, unless it is given back

  credit() {} // an HTTP stream is held back by not being read

  refresh() {} // the next request carries the new token

  check(now) {
    const isSilent = [...this.#active.values()].some(({silentAt}) => now > silentAt);
    if (isSilent) this.fail(disconnected("the stream fell silent"));
  }

  /** Starts the stream or the polls; resolves when the server has answered for the first time. */
  async subscribe(consumer) {
    const facts = await this.#describe(consumer.queue);
    const abort = new AbortController();
    const kind = consumer.wire.group === undefined ? facts.kind : "work"; // to a group messages are leased, too
    const flow = {sub: this.#nextSub++, abort, kind, silentAt: Infinity, isReady: false};
    const ready = new Promise((resolve, reject) => {
      flow.onReady = () => resolve((flow.isReady = true));
      flow.onRefused = reject;
    });
    this.#active.set(flow.sub, flow);
    const {ordering, visibility_timeout_ms, retry_backoff_ms} = facts;
    consumer.accept({sub: flow.sub, ordering, visibility_timeout_ms, retry_backoff_ms});
    this.#flow(consumer, flow).catch((error) => this.#broke(flow, error));
    await ready;
    return {sub: flow.sub};
  }

  /** A poll may be answered in this very moment: what it brings goes back, and not to nobody. */
  async unsubscribe({sub}) {
    const flow = this.#active.get(sub);
    if (!flow) return;
    flow.isLeft = true;
    if (flow.asked && flow.kind === "work") await Promise.race([flow.asked, sleep(this.#world.limits.pollLeaveMs)]);
    flow.abort.abort();
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

  /** The queue's kind, order and lease time. A key may consume and yet not view: then the defaults are assumed. */
  async #describe(queue) {
    try {
      return (await this.#call("GET", path(queue))).config ?? {};
    } catch (error) {
      if (error.status !== 403) throw error;
      return {};
    }
  }

  async #flow(consumer, flow) {
    const {name} = this.#world;
    const isOver = name !== "poll" && this.#held.takeStream() && (await this.#streams(consumer, flow));
    if (!isOver) await this.#polls(consumer, flow);
  }

  /** False: no stream can be opened, and polls may come through where a proxy lets no stream pass. */
  async #streams(consumer, flow) {
    const {name, mayPoll} = this.#world;
    try {
      await this.#locate(consumer, flow);
      await (name === "sse" ? this.#stream(consumer, flow) : this.#source(consumer, flow));
      return true;
    } catch (error) {
      if (!mayPoll || flow.isReady || this.#isOver || error.code !== "disconnected") throw error;
      return false;
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
  async #polls(consumer, flow) {
    this.#held.join();
    try {
      for (let waitMs = 0; !flow.isLeft && !flow.abort.signal.aborted && !this.#isOver; ) {
        await consumer.untilRoom();
        const asking = this.#poll(consumer, flow, waitMs);
        flow.asked = asking.catch(() => {});
        const answer = await asking;
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

  async #poll(consumer, flow, waitMs) {
    await this.#held.takePoll();
    try {
      if (flow.isLeft || flow.abort.signal.aborted || this.#isOver) return null;
      const {queue, room, from, wire: {visibility_timeout_ms, group}} = consumer;
      const max = Math.max(1, Math.min(room, 1000));
      const body = JSON.stringify({max, wait_ms: waitMs, visibility_timeout_ms, group, from});
      const timeoutMs = waitMs + this.#world.limits.requestMs;
      return await this.#call("POST", `${path(queue)}/receive`, body, {timeoutMs, left: flow.abort.signal});
    } finally {
      this.#held.givePoll();
    }
  }

  /** Where "latest" is now: a stream that is cut before its first event would else begin anew at a later "latest". */
  async #locate(consumer, {kind}) {
    const {queue, cursor, wire: {from = "latest"}} = consumer;
    if (kind !== "stream" || cursor !== null || from !== "latest") return;
    const answer = await this.#call("POST", `${path(queue)}/receive`, JSON.stringify({max: 1, wait_ms: 0, from}));
    consumer.cursor = answer.cursor ?? null;
  }

  async #stream(consumer, flow) {
    const {limits, trace} = this.#world;
    const resume = consumer.cursor === null ? {} : {"last-event-id": consumer.cursor};
    const url = this.#eventsUrl(consumer, flow);
    trace("out", `GET ${url}`);
    const headers = {accept: "text/event-stream", ...resume};
    const response = await this.#world.http.open(url, {headers, signal: flow.abort.signal});
    flow.onReady();
    const reader = response.body.getReader();
    const parser = new EventParser(limits.eventChars);
    const decoder = new TextDecoder();
    for (;;) {
      flow.silentAt = Infinity; // our own slowness is not the server's silence
      await consumer.untilRoom();
      flow.silentAt = steadyMs() + 2 * limits.commentMs + limits.silenceGraceMs;
      const {value, done} = await reader.read().catch((error) => Promise.reject(disconnected(error.message)));
      if (done) throw disconnected("the stream ended");
      this.#events(flow, parser.push(decoder.decode(value, {stream: true})));
    }
  }

  /** EventSource cannot carry a header: each (re)connect trades the token for a one-use ticket. */
  async #source(consumer, flow) {
    const {queue, cursor} = consumer;
    const {ticket} = await this.#call("POST", "/v1/tickets", JSON.stringify({queue, scopes: [`consume:${queue}`]}));
    const url = this.#eventsUrl(consumer, flow, cursor === null ? {} : {last_event_id: cursor});
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
  #eventsUrl({queue, credit, cursor, from: start, wire}, {kind}, more = {}) {
    const from = start && cursor === null ? fromText(start) : undefined;
    const fields = {credit: kind === "stream" ? undefined : credit, ack: wire.ack, group: wire.group, from, ...more};
    if (wire.ack !== "auto") fields.attempts = "begun";
    if (kind === "work") fields.visibility_timeout_ms = wire.visibility_timeout_ms;
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
      const fields = event === "message" ? messageOf(data, id) : data ? JSON.parse(data) : {};
      if (event === "message") {
        messages.push(fields);
        cursor = flow.kind === "work" ? undefined : id || cursor; // what is leased has no place to go on from
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
  async #call(method, target, body, {timeoutMs = this.#world.limits.requestMs, left, headers} = {}) {
    if (this.#isOver) throw disconnected("the connection is gone");
    const abort = new AbortController();
    const leave = () => abort.abort();
    const timer = setTimeout(leave, timeoutMs);
    this.#requests.add(abort);
    left?.addEventListener("abort", leave);
    try {
      return await this.#world.http.call(method, target, body, abort.signal, headers);
    } catch (error) {
      if (error.code === "disconnected" && !left?.aborted) this.fail(error);
      throw error;
    } finally {
      clearTimeout(timer);
      this.#requests.delete(abort);
      left?.removeEventListener("abort", leave);
    }
  }
}

// --- transports/websocket.js

/** One WebSocket carrying every verb as a frame of `pushq.v1.json`. */
class SocketLink {
  #world; #socket; #open; #end; #isOver = false;
  #requests = new Map(); #nextId = 1; #heardAt = steadyMs(); #pingMs; #problem = null;
  publishFrames = 16;
  isPaced = false;
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

  /** The answer is taken in before the next frame is read: it may be the first `deliver`, in the same array. */
  subscribe(consumer) {
    const {queue, from, wire} = consumer;
    const attempts = wire.ack === "auto" ? undefined : "begun";
    const frame = {type: "subscribe", queue, ack: "manual", attempts, ...wire, from};
    return this.#request(frame, (answer) => consumer.accept(answer));
  }

  begin({sub}, receipts) {
    this.#send(JSON.stringify({type: "begin", sub, receipts}));
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

  publish(queue, texts, {idempotencyKey, trace, leftMs}) {
    const fields = {queue, idempotency_key: idempotencyKey, timeout_ms: leftMs, ...trace};
    const head = JSON.stringify(fields).slice(1, -1);
    return this.#requestText((id) => `{"type":"publish","id":${id},${head},"messages":[${texts}]}`);
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
    this.#heardAt = steadyMs();
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

// --- session.js

const TRANSPORTS = ["ws", "sse", "eventsource", "poll"];
const EARLIER_NAMES = Object.freeze({websocket: "ws", longpoll: "poll"}); // of transports

/** Those of the wanted transports that work in this runtime, in their order. Throws where none does. */
function usableTransports(options) {
  const wanted = (options.transports ?? TRANSPORTS).map((name) => EARLIER_NAMES[name] ?? name);
  const usable = wanted.filter((name) => isUsable(name, options));
  if (!usable.length) throw new TypeError(`none of the transports ${wanted} works in this runtime`);
  return usable;
}

function isUsable(name, {WebSocket = globalThis.WebSocket, EventSource = globalThis.EventSource, transports}) {
  if (!TRANSPORTS.includes(name)) throw new TypeError(`unknown transport "${name}", not one of ${TRANSPORTS}`);
  if (name === "ws") return Boolean(WebSocket);
  const streams = typeof ReadableStream !== "undefined" && "body" in Response.prototype;
  if (name === "sse") return streams;
  return name === "poll" || (Boolean(EventSource) && (!streams || Boolean(transports)));
}

/** The one loop that connects, carries, waits, and connects again, until the client is over. */
class Session {
  #transports; #options; #shared; #limits; #client;
  #index = 0; #worked = new Set(); #failures = 0; #retryMs = 0; // over which transport, and when
  #begun = null; #id = null; #wake = null; // a link from its first byte; what the server calls us; who waits
  /** The connection, null while there is none. */ link = null;
  /** Why there is none, as it was told. @type {PushqError | null} */ unconnected = null;

  /** `shared`: what else a link may use of the client, `limits` among it; `client`: who is told what happens. */
  constructor(transports, options, shared, client) {
    this.#transports = transports;
    this.#options = options;
    this.#shared = shared;
    this.#limits = shared.limits;
    this.#client = client;
  }

  /** The transport that carries messages, or is to be tried. */
  get transport() {
    return this.#transports[this.#index];
  }

  async run() {
    while (!this.#client.isOver()) {
      const began = steadyMs();
      const error = await this.#connection();
      if (this.#client.isOver()) return;
      if (error.advice === "stop") return this.#client.fail(error);
      if (this.link) {
        this.unconnected = null;
        this.#failures = steadyMs() - began >= this.#limits.stableMs ? 0 : this.#failures + 1;
        this.link = null;
        this.#client.cut();
      } else {
        this.#failures += 1;
        if (!error.isOfToken && this.#fallBack()) continue;
        this.tellWhy(error);
      }
      if (error.advice === "refresh" && this.#failures <= 1) continue;
      await this.#pause(error);
    }
  }

  /** Waits no longer to connect. */
  hurry = () => this.#wake?.();

  /** Ends the connection, also one that is still being made. */
  leave() {
    this.link = null;
    this.#begun?.close();
  }

  /** Nothing can be sent, and publishes wait: why is told at once, and again only when there is another reason. */
  tellWhy(error) {
    if (error.detail !== this.unconnected?.detail) this.#client.problem(error);
    this.unconnected = error;
  }

  /** One connection from first byte to last; answers with the error that ended it. Never throws. */
  async #connection() {
    this.#client.enter("connecting");
    const name = this.transport;
    try {
      const link = await (name === "ws" ? SocketLink : FetchLink).open(this.#world(name));
      if (this.#client.isOver()) {
        link.close();
        return disconnected("closed while connecting");
      }
      return await this.#carry(name, link);
    } catch (error) {
      return error instanceof PushqError ? error : disconnected(String(error?.message ?? error));
    }
  }

  #carry(name, link) {
    this.link = link;
    const isResumed = Boolean(link.session) && link.session === this.#id;
    this.#id = link.session ?? this.#id;
    this.#worked.add(name);
    this.unconnected = null;
    this.#client.carry(isResumed);
    return link.ended;
  }

  /** What a link may use of us. */
  #world(name) {
    const {trace = () => {}, WebSocket, EventSource} = this.#options;
    return {
      ...this.#shared,
      name,
      mayPoll: this.#transports.includes("poll"),
      session: this.#id,
      trace,
      WebSocket: WebSocket ?? globalThis.WebSocket,
      EventSource: EventSource ?? globalThis.EventSource,
      begun: (link) => (this.#begun = link), // so that a close reaches it while it connects
      receive: (frame) => this.#receive(frame),
    };
  }

  #receive(frame) {
    if (frame.type === "bye") this.#retryMs = frame.retry_ms ?? 0;
    this.#client.receive(frame);
  }

  /** A transport that never worked gives way at once; to one that has, the server may just be restarting. */
  #fallBack() {
    const tries = this.#worked.has(this.transport) ? this.#limits.transportFailures : 1;
    if (this.#transports.length === 1 || this.#failures % tries) return false;
    this.#index = (this.#index + 1) % this.#transports.length;
    return this.#index !== 0;
  }

  async #pause(error) {
    const retryAfterMs = Math.max(this.#retryMs, error.retryAfterMs);
    const waitMs = backoffMs(Math.max(0, this.#failures - 1), Math.random(), retryAfterMs, this.#limits);
    this.#retryMs = 0;
    this.#client.enter("waiting", {error, retryMs: waitMs});
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#wake = () => resolve(clearTimeout(timer));
    });
    this.#wake = null;
  }
}

// --- client.js

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
