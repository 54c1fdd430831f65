/** The verbs over plain HTTP, for networks that let no WebSocket through: streams of events, or long-polls. */

import {path, quoted} from "../api.js";
import {PushqError, disconnected} from "../errors.js";
import {sleep, steadyMs} from "../timers.js";
import {HeldConnections} from "./connections.js";
import {EventParser, fromText, messageOf} from "./events.js";

/**
 * The verbs as HTTP requests, with one stream or poll per subscription turned into `deliver` frames. Any stream that
 * breaks ends the link: the client's one loop then waits, and starts every subscription again at its cursor.
 */
export class FetchLink {
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
