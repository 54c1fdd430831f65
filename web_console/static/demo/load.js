/** Steady load: a producer numbers its messages, a consumer acknowledges them, and the panel compares the two. */

import {Tally} from "./tally.js";

const QUEUE = "demo.load";
const EVERY_MS = 50;
const MESSAGES_MAX = 1_000_000; // 14 hours; determines the size of the tally's arrays
const SETTLED_MS = 5_000;
const LEASE_MS = 8_000; // messages in flight when the server dies are redelivered after this time
const SLOW_MS = 2_000;
const CREDIT = 32;
const SLOW_CREDIT = 2;

export class Load {
  #room; #producer; #consumer; #subscription;
  #tally = new Tally(MESSAGES_MAX); #next = 0; #waiting = 0; #isPaused = false; #isSlow = false;
  #run = crypto.getRandomValues(new Uint32Array(1))[0];
  #others = new BroadcastChannel("pushq-demo-load"); // a work queue may hand our message to another tab

  constructor(room) {
    this.#room = room;
    this.#others.onmessage = ({data}) => data.run === this.#run && this.#tally.receive(data.n, data.attempt);
    onClick("load", (button) => this.#pause(button));
    onClick("slow", (button) => this.#beSlow(button));
    setInterval(() => this.#publish(), EVERY_MS);
    setInterval(() => this.#show(), 200);
    setInterval(() => this.#ask(), 1_000);
  }

  async open() {
    this.#producer = this.#room.connect("producer");
    this.#consumer = this.#room.connect("consumer");
    await this.#subscribe();
  }

  async close() {
    const producer = this.#producer;
    this.#producer = null;
    await Promise.all([producer?.close(), this.#consumer?.close()]);
  }

  async #subscribe() {
    const credit = this.#isSlow ? SLOW_CREDIT : CREDIT;
    this.#subscription = this.#consumer.subscribe(QUEUE, {credit, visibilityTimeoutMs: LEASE_MS}, (message) => this.#take(message));
    await this.#subscription.ready;
  }

  async #take({body: {run, n}, attempt}) {
    if (this.#isSlow) await new Promise((resolve) => setTimeout(resolve, SLOW_MS));
    if (run === this.#run) this.#tally.receive(n, attempt);
    else this.#others.postMessage({run, n, attempt}); // from another tab, or from a page that was closed
  }

  async #publish() {
    if (!this.#producer || this.#isPaused || this.#next >= MESSAGES_MAX) return;
    const n = this.#next++;
    try {
      await this.#producer.publish(QUEUE, {run: this.#run, n});
      this.#tally.confirm(n, performance.now());
    } catch {
      // Unconfirmed: it may still arrive, but that was not promised.
    }
  }

  /** Messages that the server still holds are late, not missing. */
  async #ask() {
    const answer = await this.#room.request("GET", `/v1/queues/${QUEUE}`).catch(() => null);
    if (!answer?.ok) return;
    const {stats} = await answer.json();
    this.#waiting = stats.ready + stats.in_flight;
  }

  #show() {
    const {sent, received, duplicate, redelivered} = this.#tally;
    const unreceived = this.#tally.unreceived(this.#next);
    const overdue = this.#tally.unreceived(this.#next, performance.now() - SETTLED_MS);
    const missing = Math.max(0, overdue - this.#waiting);
    const shown = {sent, received, duplicate, redelivered, waiting: this.#waiting, missing};
    for (const [name, value] of Object.entries(shown)) document.getElementById(name).textContent = value;
    const verdict = document.getElementById("missing");
    verdict.dataset.unreceived = unreceived;
    verdict.parentElement.toggleAttribute("data-bad", missing > 0);
  }

  #pause(button) {
    this.#isPaused = !this.#isPaused;
    button.setAttribute("aria-pressed", this.#isPaused);
  }

  async #beSlow(button) {
    this.#isSlow = !this.#isSlow;
    button.setAttribute("aria-pressed", this.#isSlow);
    await this.#subscription?.close();
    await this.#subscribe();
  }
}

function onClick(id, action) {
  const button = document.getElementById(id);
  button.addEventListener("click", () => action(button));
}
