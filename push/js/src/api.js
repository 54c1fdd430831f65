/** One authenticated call of the HTTP API: a request out, its JSON or a typed error back. */

import {PushqError, disconnected} from "./errors.js";

const CODES = Object.freeze({ // of a status that comes without a problem document
  401: "unauthenticated", 403: "forbidden", 404: "not-found", 409: "conflict", 413: "message-too-large", 429: "rate-limited",
});

/** The HTTP API as one client may use it: its token in a header, problems as errors. */
export class Http {
  #base; #fetch; #token; #trace;

  constructor({base, fetch, token, trace}) {
    this.#base = base;
    this.#fetch = fetch;
    this.#token = token;
    this.#trace = trace;
  }

  /** One request and its JSON answer. */
  async call(method, target, body, signal, more = {}) {
    this.#trace("out", `${method} ${target} ${body ?? ""}`);
    const headers = body === undefined ? more : {"content-type": "application/json", ...more};
    const response = await this.open(target, {method, body, signal, headers});
    const text = await response.text().catch((error) => Promise.reject(disconnected(error.message)));
    if (target !== "/v1/tickets") this.#trace("in", `${response.status} ${text}`);
    return parsed(text, this.#base);
  }

  /** An answer whose body is still to be read. A token that the server no longer takes is replaced once. */
  async open(target, request, isSecond = false) {
    const token = await this.#token(isSecond);
    const headers = token ? {...request.headers, authorization: `Bearer ${token}`} : request.headers;
    const response = await this.#fetch(`${this.#base}${target}`, {...request, headers, cache: "no-store"})
      .catch((error) => Promise.reject(disconnected(`no response from ${this.#base}: ${error.cause?.message || error.message}`)));
    if (response.status === 401 && !isSecond) return this.open(target, request, true);
    if (!response.ok) throw await problemOf(response);
    return response;
  }
}

export const path = (queue) => `/v1/queues/${encodeURIComponent(queue)}`;

async function problemOf(response) {
  const {status} = response;
  const problem = await response.json().catch(() => null);
  const [seconds] = /^\d{1,9}$/.exec(response.headers.get("retry-after") ?? "") ?? [0];
  const retryAfterMs = problem?.retry_after_ms ?? seconds * 1000;
  if (problem?.code) return PushqError.from({...problem, status, retry_after_ms: retryAfterMs});
  // No problem document: a proxy spoke, and of 502 to 504 the server behind it is away.
  const detail = `HTTP ${status} without a problem document`;
  if (status >= 502) return disconnected(detail, retryAfterMs);
  const code = CODES[status] ?? (status >= 500 ? "internal" : "invalid-request");
  return new PushqError(code, detail, {status, retryAfterMs});
}

/** An answer's JSON. Another page in its place (of a proxy, or to sign in) is as good as none. */
function parsed(text, base) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw disconnected(`an answer of ${base} could not be read: ${error.message}`);
  }
}

/** A string of a structured field (RFC 9651). */
export function quoted(text) {
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}
