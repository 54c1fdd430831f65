/** The verbs over a WebSocket: the transport that has every feature. */

import {closeAdvice} from "../backoff.js";
import {PushqError, disconnected} from "../errors.js";
import {steadyMs} from "../timers.js";

/** One WebSocket carrying every verb as a frame of `pushq.v1.json`. */
export class SocketLink {
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
