/** One connection after another: over which transport, and how long to wait in between. */

import {backoffMs} from "./backoff.js";
import {PushqError, disconnected} from "./errors.js";
import {steadyMs} from "./timers.js";
import {FetchLink} from "./transports/http.js";
import {SocketLink} from "./transports/websocket.js";

const TRANSPORTS = ["ws", "sse", "eventsource", "poll"];
const EARLIER_NAMES = Object.freeze({websocket: "ws", longpoll: "poll"}); // of transports

/** Those of the wanted transports that work in this runtime, in their order. Throws where none does. */
export function usableTransports(options) {
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
export class Session {
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
