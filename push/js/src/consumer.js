/** One subscription across all its connections: what it holds, what may begin, and how much more it may be sent. */

import {checkAck, checkCredit, checkQueue} from "./arguments.js";
import {askedMs, retryMs} from "./backoff.js";
import {refuseHalves} from "./bodies.js";
import {REASON_CHARS_MAX} from "./config.js";
import {Delivery, PLAIN} from "./delivery.js";
import {LeaseLost, PushqError, closed, disconnected} from "./errors.js";
import {Lines} from "./lines.js";
import {SUBSCRIBE_OPTIONS, checkNames} from "./options.js";
import {toWire} from "./outgoing.js";
import {Settler} from "./settling.js";
import {sleep, steadyMs} from "./timers.js";

/**
 * One queue's messages on their way to a handler. With a receipt they run side by side, as many as the credit, or in
 * lines where the order counts: of a key on a `strict` queue, of all messages in a stream's group. Without a receipt
 * they run one after the other. `ready` resolves when the server has the subscription, `closed` when it is over.
 */
export class Consumer {
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
