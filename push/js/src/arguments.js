/** What a caller says beside a body: refused here where no frame could carry it. */

import {refuseHalves} from "./bodies.js";
import {CREDIT_MAX} from "./config.js";
import {PushqError} from "./errors.js";

export function checkQueue(queue) {
  if (typeof queue !== "string") throw new PushqError("invalid-request", `the queue name must be a string, not ${queue}`);
  refuseHalves(JSON.stringify(queue));
  if (/^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/.test(queue)) return; // in a URL "a/b" or ".." may be something else
  const rule = "use 1 to 128 characters from A-Z a-z 0-9 _ . -, starting with a letter or digit";
  throw new PushqError("invalid-request", `invalid queue name "${queue.slice(0, 200)}": ${rule}`);
}

export function checkTimeout(timeoutMs) {
  if (timeoutMs === undefined || (Number.isInteger(timeoutMs) && timeoutMs >= 1 && timeoutMs <= 60_000)) return;
  throw new PushqError("invalid-request", `timeoutMs must be between 1 and 60000, not ${timeoutMs}`);
}

export function checkCredit(credit) {
  if (credit === undefined || (Number.isInteger(credit) && credit > 0 && credit <= CREDIT_MAX)) return;
  throw new PushqError("invalid-request", `credit must be a whole number between 1 and ${CREDIT_MAX}, not ${credit}`);
}

export function checkAck(ack) {
  if ([undefined, "manual", "auto"].includes(ack)) return;
  throw new PushqError("invalid-request", `ack must be "manual" or "auto", not ${ack}`);
}

/** The context of a message, or undefined. Another than the first of its frame starts a new one. */
export function checkedTrace(traceparent, tracestate) {
  if (traceparent === undefined && tracestate === undefined) return undefined;
  const isTrace = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/.test(traceparent);
  if (!isTrace) throw new PushqError("invalid-request", "traceparent must be 00-TRACE-SPAN-FLAGS in hexadecimal digits");
  if (tracestate !== undefined && !/^[ -~]{1,512}$/.test(tracestate)) {
    throw new PushqError("invalid-request", "tracestate must have 1 to 512 printable ASCII characters");
  }
  return {traceparent, tracestate};
}

export function isSameTrace(one, other) {
  return one?.traceparent === other?.traceparent && one?.tracestate === other?.tracestate;
}
