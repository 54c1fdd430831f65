/** What can go wrong for a client: its kinds, and whether the same may succeed later. */

const RETRIABLE = new Set([
  "disconnected", "rate-limited", "too-many-connections", "not-leader", "unavailable", "overloaded", "draining",
  "not-durable", "outcome-unknown", "request-timeout", "request-in-progress",
]);
export const LEAVES_OPEN = new Set(["disconnected", "outcome-unknown", "internal"]); // it may have been done

/**
 * An error with a stable `code`: the server's problem, or one of ours: `disconnected`, `timeout`, `buffer-full`,
 * `closed`, `already-settled`, `no-reply-to`, and those of the classes below. `retriable`: the same may succeed later.
 */
export class PushqError extends Error {
  /**
   * @param {string} code @param {string} detail
   * @param {{status?: number, retryAfterMs?: number, errors?: object[]}} [more]
   */
  constructor(code, detail, {status = 0, retryAfterMs = 0, errors = []} = {}) {
    super(`${detail} (${code})`);
    const retriable = RETRIABLE.has(code);
    Object.assign(this, {name: new.target.name, code, detail, status, retryAfterMs, errors, retriable});
  }

  /** @param {object} problem as RFC 9457 and the API describe it */
  static from(problem) {
    const {code = "internal", detail = problem.title ?? "the server gave no detail", status, errors} = problem;
    return new PushqError(code, detail, {status, errors, retryAfterMs: problem.retry_after_ms});
  }
}

/** Nobody replied in time. `isStored`: the request lies in its queue, or did; without it that is not known. */
export class RequestTimeout extends PushqError {
  /** @param {string} queue @param {number} timeoutMs @param {boolean} isStored */
  constructor(queue, timeoutMs, isStored) {
    const request = isStored ? "the request was stored" : "the request was not confirmed";
    super("request-timeout", `queue "${queue}": no reply within ${timeoutMs} ms; ${request}`);
    Object.assign(this, {queue, timeoutMs, isStored});
  }
}

/** `request` has no queue for the replies, and may not make one; the message says what would help. */
export class NoReplyQueue extends PushqError {
  /** @param {string} detail @param {PushqError} cause the server's refusal */
  constructor(detail, cause) {
    super("no-reply-queue", detail, {status: cause.status});
    this.cause = cause;
  }
}

/** The lease of a message had ended before it was settled: somebody else may have the message. */
export class LeaseLost extends PushqError {
  /** @param {string} queue @param {string} verdict @param {{id: string, attempt: number}} message */
  constructor(queue, verdict, {id, attempt}) {
    super("stale-receipt", `queue "${queue}": ${verdict} of message ${id}, attempt ${attempt}, came after its lease had expired`);
  }
}

export const disconnected = (detail, retryAfterMs = 0) => new PushqError("disconnected", detail, {retryAfterMs});
export const closed = () => new PushqError("closed", "this client or subscription is closed");

/** What a receipt's result says went wrong, or null. */
export function errorOf({ok = false, error = "stale-receipt"} = {}) {
  if (ok) return null;
  return PushqError.from(typeof error === "string" ? {code: error, detail: error} : error);
}
