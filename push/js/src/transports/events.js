/** A stream of server-sent events: where it begins, and from its text to messages. */

import {LIMITS} from "../config.js";
import {disconnected} from "../errors.js";

/** Parses `text/event-stream` (WHATWG HTML, 9.2.6) from pieces cut anywhere. */
export class EventParser {
  #charsMax; #rest = ""; #isFirst = true; #afterCr = false;
  #event = ""; #data = []; #size = 0; #id = "";

  constructor(charsMax = LIMITS.eventChars) {
    this.#charsMax = charsMax;
  }

  /** @param {string} text @returns {{event: string, data: string, id: string}[]} the events it completes */
  push(text) {
    if (this.#isFirst && text) {
      this.#isFirst = false;
      text = text.replace(/^\uFEFF/, "");
    }
    if (this.#afterCr && text) {
      this.#afterCr = false;
      text = text.replace(/^\n/, ""); // the second half of a CRLF that was cut in two
    }
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#afterCr = text.endsWith("\r");
    this.#rest = lines.pop();
    const events = lines.map((line) => this.#line(line)).filter(Boolean);
    const size = this.#size + this.#rest.length;
    if (size > this.#charsMax) throw disconnected(`an event exceeds ${this.#charsMax} characters`);
    return events;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (name === "event") this.#event = value;
    else if (name === "data") this.#add(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #add(value) {
    this.#data.push(value);
    this.#size += value.length + 1;
  }

  #dispatch() {
    const event = {event: this.#event || "message", data: this.#data.join("\n"), id: this.#id};
    const isEmpty = !this.#data.length;
    this.#event = "";
    this.#data = [];
    this.#size = 0;
    return isEmpty ? null : event;
  }
}

/** `from` as the query parameter of an SSE stream. */
export function fromText(from) {
  if (typeof from === "string") return from;
  const [[name, value]] = Object.entries(from);
  return `${name}:${value}`;
}

/** A message of an event; of one whose text is broken, what tells which it is. */
export function messageOf(data, id) {
  try {
    return JSON.parse(data);
  } catch (unread) {
    const [, receipt = null] = /"receipt":"([^"]+)"/.exec(data) ?? [];
    return {id, receipt, unread};
  }
}
