/** From `publish` to a frame: messages gather into batches, wait for their confirmation, and go again after a cut. */

import {checkQueue, checkTimeout, checkedTrace, isSameTrace} from "./arguments.js";
import {askedMs} from "./backoff.js";
import {encodeBody, refuseHalves, refuseUnfit} from "./bodies.js";
import {LEAVES_OPEN, PushqError} from "./errors.js";
import {toWire} from "./outgoing.js";
import {oncePerTurn, steadyMs} from "./timers.js";

/** Gathers publishes of one turn into frames and holds each until the server has confirmed it, across reconnects. */
export class Publisher {
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
