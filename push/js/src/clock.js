/** The hybrid logical clock: stamps that keep cause before effect, though no two computers agree on the time. */

import {LIMITS} from "./config.js";

/**
 * A hybrid logical clock (Kulkarni et al., 2014): stamps that only rise, and that come after every stamp seen. A stamp
 * is in microseconds since 1970: the computer's milliseconds × 1000, plus 0 to 999 for those taken in the same one.
 */
export class HybridClock {
  #lastUs = 0; #aheadMs;

  constructor(aheadMs = LIMITS.clockAheadMs) {
    this.#aheadMs = aheadMs;
  }

  /** The next stamp. The computer's clock may jump as it likes. @param {number} nowMs @returns {number} */
  tick(nowMs) {
    this.#lastUs = Math.max(nowMs * 1000, this.#lastUs + 1);
    return this.#lastUs;
  }

  /** Takes note of another's stamp; false for one so far ahead that a broken clock would carry all others along. */
  merge(stampUs, nowMs) {
    if (!(stampUs <= (nowMs + this.#aheadMs) * 1000)) return false; // NaN too
    this.#lastUs = Math.max(this.#lastUs, stampUs);
    return true;
  }

  /** As RFC 3339: three digits for a whole millisecond, else six. @param {number} stampUs @returns {string} */
  static format(stampUs) {
    const text = new Date(Math.floor(stampUs / 1000)).toISOString();
    const logical = stampUs % 1000;
    return logical ? `${text.slice(0, -1)}${String(logical).padStart(3, "0")}Z` : text;
  }

  /** In microseconds; NaN for what is no time with a zone. @param {string} text @returns {number} */
  static parse(text) {
    const [, seconds, fraction = "", zone] = /^(.+?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/i.exec(text) ?? [];
    return Date.parse(`${seconds}${zone}`) * 1000 + Number(fraction.slice(0, 6).padEnd(6, "0"));
  }
}
