/** From the options of a call to the fields that travel: the wire's names, and times as RFC 3339. */

import {PushqError} from "./errors.js";

/** Options with another name on the wire. All others travel as given; the server refuses a message with unknown ones. */
const WIRE_NAMES = Object.freeze({
  contentType: "content_type",
  correlationId: "correlation_id",
  delayMs: "delay_ms",
  deliverAt: "deliver_at",
  idempotencyKey: "idempotency_key",
  producerSeq: "producer_seq",
  replyTo: "reply_to",
  timeoutMs: "timeout_ms",
  ttlMs: "ttl_ms",
  visibilityTimeoutMs: "visibility_timeout_ms",
});

/** Options as they travel: under the wire's names, times as RFC 3339. */
export function toWire(options) {
  const wire = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new PushqError("invalid-request", `${name} is ${value}, which has no JSON representation`);
    }
    wire[WIRE_NAMES[name] ?? name] = value instanceof Date ? timeText(name, value) : value;
  }
  return wire;
}

function timeText(name, date) {
  if (Number.isNaN(date.getTime())) throw new PushqError("invalid-request", `${name} is not a valid date`);
  return date.toISOString();
}
