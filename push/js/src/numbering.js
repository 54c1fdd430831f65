/** Between a batch and its frame: each message gets its number and its stamp, which say where it belongs. */

import {HybridClock} from "./clock.js";
import {LEAVES_OPEN} from "./errors.js";
import {randomHex} from "./ids.js";

const OWN_FIELD = /^\/messages\/\d+\/(producer|producer_seq|timestamp)$/;

/**
 * Who publishes, the how-manieth message it is, and when: what a queue sequenced by `producer` or `clock` sorts by.
 * Each queue counts from 1. Answers say what a queue needs; until the first one, messages carry everything.
 */
export class Numbering {
  #clock; #queuesMax; #first; #isAlways; #ids; #floor = 1; #queues = new Map(); // the longest unused first

  constructor(clock, queuesMax, options) {
    const {producer = randomHex(12), firstNumber = 1, numberAlways = false, publishIds = "auto"} = options;
    const numbers = typeof firstNumber === "number" ? [firstNumber] : Object.values(firstNumber);
    const wrong = numbers.find((number) => !Number.isSafeInteger(number) || number < 1);
    if (wrong !== undefined) throw new TypeError(`firstNumber must be at least 1, not ${wrong}`);
    this.producer = producer;
    this.#clock = clock;
    this.#queuesMax = queuesMax;
    this.#first = firstNumber;
    this.#isAlways = numberAlways;
    this.#ids = publishIds;
  }

  /** The next number of each queue that counts them. */
  get next() {
    const counted = [...this.#queues].filter(([, {sequencing}]) => sequencing !== "arrival" || this.#isAlways);
    return Object.fromEntries(counted.map(([queue, {next}]) => [queue, next]));
  }

  /** What is added to a message that leaves for the first time; `item` remembers its number and id. */
  fields(queue, item) {
    const {given} = item;
    const row = this.#row(queue);
    const fields = {};
    const isNamed = this.#ids === "auto" ? row.dedupe !== "none" : this.#ids;
    const hasKey = item.idempotencyKey !== undefined; // another id would be another message
    if (given.id === undefined && isNamed && !hasKey) fields.id = item.id ??= randomHex();
    if (row.sequencing === "arrival" && !this.#isAlways) return fields;
    if (given.producer === undefined && given.producer_seq === undefined) {
      item.number = row.next++;
      fields.producer = this.producer;
      fields.producer_seq = item.number;
    }
    if (given.timestamp === undefined) fields.timestamp = HybridClock.format(this.#clock.tick(Date.now()));
    return fields;
  }

  /** What an answer says of its queue; the queue may have been changed since the last one. */
  learn(queue, items, {sequencing, dedupe}) {
    const row = this.#row(queue);
    row.sequencing = sequencing;
    row.dedupe = dedupe;
    row.hasStored ||= sequencing !== "arrival" && items.some(({number}) => number !== null);
  }

  /**
   * None of these was stored. When no later number is out, theirs are the next ones again; else they stay unused, and
   * the server waits for them for its sort window.
   */
  takeBack(queue, items, error) {
    if (!error.status || LEAVES_OPEN.has(error.code)) return;
    const numbered = items.filter(({number}) => number !== null);
    const numbers = numbered.map(({number}) => number);
    const row = this.#row(queue);
    const first = Math.min(...numbers);
    const isTail = row.next - first === numbers.length && Math.max(...numbers) === row.next - 1;
    if (!isTail || numbered.some(({isUncertain}) => isUncertain)) return;
    row.next = first;
    numbered.forEach((item) => Object.assign(item, {number: null, text: null}));
  }

  /**
   * A refusal of nothing but the fields that we added, or left out: the server does not know them yet, or the queue's
   * `sequencing` was changed. True when the messages may go again in the other form, which each does once.
   */
  adapt(queue, items, error) {
    const {errors = []} = error;
    const isOurs = errors.length > 0 && errors.every(({pointer}) => OWN_FIELD.test(pointer));
    const brings = ({given}) => given.producer !== undefined || given.producer_seq !== undefined || given.timestamp;
    if (!isOurs || items.some((item) => item.isAdapted || brings(item))) return false;
    const row = this.#row(queue);
    const areNumbered = items.some(({number}) => number !== null);
    if (areNumbered && row.hasStored) return false; // it does know them: one is wrong
    row.sequencing = areNumbered ? "arrival" : undefined;
    this.takeBack(queue, items, error);
    items.forEach((item) => Object.assign(item, {isAdapted: true, number: null, text: null}));
    return true;
  }

  #row(queue) {
    const row = this.#queues.get(queue) ?? {next: this.#firstOf(queue), hasStored: false};
    this.#queues.delete(queue);
    this.#queues.set(queue, row);
    if (this.#queues.size > this.#queuesMax) this.#forgetOne();
    return row;
  }

  /** Its numbers go on where they cannot repeat: a gap is waited out, a number given twice would cost a message. */
  #forgetOne() {
    const [[queue, {next}]] = this.#queues;
    this.#queues.delete(queue);
    this.#floor = Math.max(this.#floor, next);
  }

  #firstOf(queue) {
    const first = typeof this.#first === "number" ? this.#first : this.#first[queue] ?? 1;
    return Math.max(first, this.#floor);
  }
}
