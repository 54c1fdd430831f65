/** Jobs: the page publishes a job, a worker leases it from a work queue and reports its progress on a stream. */

import {addLine} from "./lines.js";

const JOBS = "demo.jobs";
const PROGRESS = "demo.progress";
const STEPS = 10;
const STEP_MS = 300;
const CREDIT = 2;

export class Jobs {
  #room; #customer; #worker; #bars = new Map(); #cursor = null; #subscription; #count = 0;

  constructor(room) {
    this.#room = room;
    document.getElementById("start-job").addEventListener("click", () => this.#start());
  }

  async open() {
    this.#customer = this.#room.connect("customer");
    this.#worker = this.#room.connect("worker");
    const from = this.#cursor === null ? "latest" : {cursor: this.#cursor};
    this.#subscription = this.#customer.subscribe(PROGRESS, {from}, ({body}) => this.#show(body));
    const work = this.#worker.subscribe(JOBS, {credit: CREDIT}, (message) => this.#work(message));
    await Promise.all([this.#subscription.ready, work.ready]);
  }

  async close() {
    this.#cursor = this.#subscription.cursor ?? this.#cursor;
    await Promise.all([this.#customer.close(), this.#worker.close()]);
  }

  async #start() {
    this.#count += 1;
    const job = `${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}-${this.#count}`;
    this.#show({job, name: `Job ${this.#count}`, percent: 0, attempt: 0});
    await this.#customer.publish(JOBS, {job, name: `Job ${this.#count}`});
  }

  /** Runs in the worker. If it throws, or its process dies, the queue redelivers the job. */
  async #work({body: {job, name}, attempt, signal}) {
    for (let step = 1; step <= STEPS && !signal.aborted; step += 1) {
      await new Promise((resolve) => setTimeout(resolve, STEP_MS));
      await this.#worker.publish(PROGRESS, {job, name, percent: (100 * step) / STEPS, attempt});
    }
  }

  #show({job, name, percent, attempt}) {
    if (!this.#bars.has(job)) {
      if (attempt) return; // a job of another tab
      const label = document.createElement("span");
      const bar = Object.assign(document.createElement("progress"), {max: 100, value: 0});
      bar.setAttribute("aria-label", name);
      const line = addLine("job-list");
      line.append(label, bar);
      this.#bars.set(job, {label, bar});
      if (this.#bars.size > 20) this.#bars.delete(this.#bars.keys().next().value);
    }
    const {label, bar} = this.#bars.get(job);
    bar.value = Math.max(bar.value, percent);
    const state = bar.value >= 100 ? "done" : attempt ? `${bar.value} %` : "waiting for the worker";
    label.textContent = `${name}: ${state}${attempt > 1 ? `, attempt ${attempt}` : ""}`;
  }
}
