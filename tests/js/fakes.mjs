/** A WebSocket whose other end a test plays. What a real server promises is tested against the real server. */

import {connect} from "../../push/js/pushq.js";

/** Makes a `WebSocket` class whose sockets appear in `sockets`, each driven by the test. */
export function fakeSockets() {
  const sockets = [];
  class FakeWebSocket {
    sent = [];
    closedWith = null;

    constructor(url, protocol) {
      Object.assign(this, {url, protocol});
      sockets.push(this);
    }

    send(text) {
      this.sent.push(JSON.parse(text));
    }

    close(code) {
      this.closedWith = code;
    }

    // What the server does:
    open() {
      this.onopen();
    }

    say(frame) {
      this.onmessage({data: JSON.stringify(frame)});
    }

    end(code, reason = "") {
      this.onclose({code, reason});
    }

    /** Opens and answers `connect`. */
    accept(session = "s1", more = {}) {
      this.open();
      this.say({type: "connected", id: 0, session, ping_ms: 25_000, limits: {}, ...more});
    }

    frames(type) {
      return this.sent.filter((frame) => frame.type === type);
    }

    last(type) {
      return this.frames(type).at(-1);
    }
  }
  return {WebSocket: FakeWebSocket, sockets};
}

/** Node ends once nothing is open; a fake connection does not count, so a test holds the process itself. */
export function stayAwake(t) {
  const timer = setInterval(() => {}, 1_000);
  t.after(() => clearInterval(timer));
}

/** Waits until `find` gives something, a second at most. */
export async function eventually(find, what = find.toString()) {
  for (let tries = 0; tries < 200; tries += 1) {
    const found = find();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  throw new Error(`did not come: ${what}`);
}

/** The detail of the `state` event that enters this state. */
export function entering(client, state) {
  return new Promise((resolve) => {
    client.addEventListener("state", ({detail}) => detail.state === state && resolve(detail));
  });
}

/** The next event of that name. */
export function event(client, name) {
  return new Promise((resolve) => client.addEventListener(name, ({detail}) => resolve(detail), {once: true}));
}

/** A leased message as the server sends it. */
export function leased(n, more = {}) {
  const fields = {content_type: "application/json", headers: {}, key: null, priority: 0, attempt: 1};
  const place = {id: `m${n}`, seq: n, partition: 0, published_at: "2026-01-01T00:00:00.000Z"};
  return {...place, body: n, ...fields, receipt: `t.${n}`, ...more};
}

/** Answers `ok` to a publish frame, as if every message was stored. `more` is what the answer says of the queue. */
export function confirm(socket, frame, more = {}) {
  const messages = frame.messages.map(({id}, seq) => ({id, seq, partition: 0, duplicate: false}));
  socket.say({type: "ok", id: frame.id, messages, durability: {fsynced: true, replicas: 1}, ...more});
}

/** Refuses a request. */
export function refuse(socket, frame, problem) {
  socket.say({type: "error", id: frame.id, problem: {detail: "no", status: 400, code: "invalid-request", ...problem}});
}

/** Answers ack, nack or extend: each receipt with `result`. */
export function settle(socket, frame, result = {ok: true}) {
  socket.say({type: "ok", id: frame.id, results: frame.receipts.map((receipt) => ({receipt, ...result}))});
}

const QUICK = {backoffBaseMs: 1, backoffCapMs: 2, tickMs: 20, closeMs: 50};

/** A client over fake sockets that waits for nothing longer than it must. */
export function quickClient(t, {limits = {}, ...options} = {}) {
  stayAwake(t);
  const {WebSocket, sockets} = fakeSockets();
  const given = {url: "http://test/", transports: ["ws"], WebSocket, ...options};
  const pushq = connect({...given, limits: {...QUICK, ...limits}});
  t.after(() => pushq.close());
  return {pushq, sockets};
}

/** The next socket, open and connected. */
export async function accepted(sockets, at = 0, session = `s${at + 1}`) {
  const socket = await eventually(() => sockets[at]);
  socket.accept(session);
  return socket;
}

/** Subscribes, and answers for the server. `ok` is what its answer says. */
export async function subscribed(t, options, handler, {ok = {}, ...client} = {}) {
  const {pushq, sockets} = quickClient(t, client);
  const subscription = pushq.subscribe("q", options, handler);
  const socket = await accepted(sockets);
  const frame = await eventually(() => socket.last("subscribe"));
  socket.say({type: "ok", id: frame.id, sub: 1, resume: "complete", ...ok});
  await subscription.ready;
  return {pushq, subscription, socket, sockets, frame};
}

/** Long enough for everything that is due in this turn and the next. */
export function aMoment(ms = 30) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
