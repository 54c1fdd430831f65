/** Chat: two people with a client each, and one stream that both read and write. */

import {showLine} from "./lines.js";

const QUEUE = "demo.chat";

export class Chat {
  #people;

  constructor(room) {
    this.#people = ["Left", "Right"].map((name) => new Person(room, name));
  }

  async open() {
    await Promise.all(this.#people.map((person) => person.open()));
  }

  async close() {
    await Promise.all(this.#people.map((person) => person.close()));
  }
}

class Person {
  #room; #name; #pushq; #subscription; #cursor = null;

  constructor(room, name) {
    this.#room = room;
    this.#name = name;
    const form = document.getElementById(`${name}-form`);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#say(document.getElementById(`${name}-text`));
    });
  }

  async open() {
    this.#pushq = this.#room.connect(this.#name);
    const from = this.#cursor === null ? "latest" : {cursor: this.#cursor};
    this.#subscription = this.#pushq.subscribe(QUEUE, {from}, ({body}) => {
      showLine(`${this.#name}-lines`, `${body.name}: ${body.text}`);
    });
    await this.#subscription.ready;
  }

  async close() {
    this.#cursor = this.#subscription.cursor ?? this.#cursor;
    await this.#pushq.close();
  }

  #say(input) {
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    const refused = (error) => showLine(`${this.#name}-lines`, `not sent: ${error.message}`);
    this.#pushq.publish(QUEUE, {name: this.#name, text}).catch(refused);
  }
}
