/** The clients of this page: creates them on the chosen transport, shows their states, and cuts their connections. */

import {connect} from "../pushq.js";

const LABELS = {ws: "WebSocket", sse: "SSE", eventsource: "EventSource", poll: "long-poll"};
const TOKEN_SHARED_MS = 600_000; // eight clients that start together share one credential

export class ClientRoom {
  transport = "ws";
  #clients = new Map();
  #list;
  #log;
  #token = null;
  #tokenAt = 0;

  constructor(list, log) {
    this.#list = list;
    this.#log = log;
  }

  label(transport) {
    return LABELS[transport];
  }

  /** Opens a new connection under this name, replacing an earlier one. */
  connect(name) {
    const pushq = connect({
      transports: [this.transport],
      token: () => this.token(),
      trace: (direction, text) => this.#log.add(name, direction, text),
    });
    const entry = this.#entry(name);
    this.#clients.set(name, pushq);
    this.#show(entry, name, pushq.state);
    pushq.addEventListener("state", ({detail}) => {
      if (detail.state === "connecting") this.#token = null; // a restarted server may not know the credential
      this.#show(entry, name, detail.state);
    });
    pushq.addEventListener("problem", ({detail}) => this.#log.add(name, "!", detail.error.message));
    return pushq;
  }

  /** Requests by the page itself, for queues and their stats. */
  async request(method, path, body) {
    const headers = {authorization: `Bearer ${await this.token()}`, "content-type": "application/json"};
    const answer = await fetch(path, {method, headers, body: body && JSON.stringify(body)});
    if (answer.status === 401) this.#token = null;
    return answer;
  }

  token() {
    if (!this.#token || Date.now() - this.#tokenAt > TOKEN_SHARED_MS) {
      this.#tokenAt = Date.now();
      this.#token = fetchToken();
      this.#token.catch(() => (this.#token = null));
    }
    return this.#token;
  }

  cut() {
    for (const pushq of this.#clients.values()) pushq.reconnect();
  }

  /** Resolves when every client is connected, except those that are offline on purpose. */
  untilConnected() {
    return this.#until((states) => states.every((state) => state === "connected" || state === "closed"));
  }

  /** Resolves when some client has noticed that the server is gone. */
  untilAway() {
    return this.#until((states) => states.some((state) => state !== "connected" && state !== "closed"));
  }

  async #until(isSo) {
    await new Promise((resolve) => setTimeout(resolve, 50)); // a cut connection is reported in a later event
    while (!isSo([...this.#clients.values()].map((pushq) => pushq.state))) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  #entry(name) {
    const id = `client-${name.replaceAll(" ", "-")}`;
    const entry = document.getElementById(id) ?? document.createElement("li");
    entry.id = id;
    this.#list.append(entry);
    return entry;
  }

  #show(entry, name, state) {
    entry.dataset.state = state;
    entry.textContent = `${name}: ${state === "connected" ? this.label(this.transport) : state}`;
  }
}

async function fetchToken() {
  const answer = await fetch("/demo/token", {method: "POST"});
  if (!answer.ok) throw new Error(`the server issued no credential: HTTP ${answer.status}`);
  return (await answer.json()).token;
}
