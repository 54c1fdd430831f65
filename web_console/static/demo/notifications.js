/** Notifications: a phone that may go offline reads a stream, and resumes where it stopped. */

import {showLine} from "./lines.js";

const QUEUE = "demo.notifications";
const TEXTS = ["Your parcel has left", "You were mentioned", "The build is green", "Backup finished", "Tea is ready"];

export class Notifications {
  #room; #sender; #phone = null; #subscription; #cursor = null; #unread = 0; #count = 0; #isOffline = false;

  constructor(room) {
    this.#room = room;
    document.getElementById("notify").addEventListener("click", () => this.#send());
    document.getElementById("read").addEventListener("click", () => this.#show((this.#unread = 0)));
    document.getElementById("offline").addEventListener("click", ({target}) => this.#toggle(target));
  }

  async open() {
    this.#sender = this.#room.connect("notifier");
    if (!this.#isOffline) await this.#online();
    if (this.#cursor === null) this.#publish("Welcome"); // gives the phone a cursor to resume from
  }

  async close() {
    await Promise.all([this.#sender.close(), this.#offline()]);
  }

  async #online() {
    this.#phone = this.#room.connect("phone");
    const from = this.#cursor === null ? "latest" : {cursor: this.#cursor};
    this.#subscription = this.#phone.subscribe(QUEUE, {from}, ({body}) => {
      this.#show((this.#unread += 1));
      showLine("notification-list", body.text);
    });
    await this.#subscription.ready;
  }

  async #offline() {
    this.#cursor = this.#subscription?.cursor ?? this.#cursor;
    await this.#phone?.close();
    this.#phone = null;
  }

  #toggle(button) {
    this.#isOffline = !this.#isOffline;
    button.setAttribute("aria-pressed", this.#isOffline);
    return this.#isOffline ? this.#offline() : this.#online();
  }

  #send() {
    this.#count += 1;
    return this.#publish(`${TEXTS[this.#count % TEXTS.length]} (${this.#count})`);
  }

  #publish(text) {
    const refused = (error) => showLine("notification-list", `not sent: ${error.message}`);
    return this.#sender.publish(QUEUE, {text}).catch(refused);
  }

  #show(unread) {
    document.getElementById("unread").textContent = unread;
    document.querySelector(".badge").toggleAttribute("data-unread", unread > 0);
  }
}
