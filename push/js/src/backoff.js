/** Whether to try again, and after how long: with jitter, so that clients cut at one moment do not come back at one. */

import {LIMITS} from "./config.js";

/** What to keep of a wait that was asked for: all of it, or of one above the limit between half of that and all. */
export function askedMs(ms, random, {askedWaitMs} = LIMITS) {
  return ms <= askedWaitMs ? ms : askedWaitMs * (0.5 + random / 2);
}

/** What the server asks of this client, then full jitter: anywhere below 0.5 s·2^n, capped. `random` is in [0, 1). */
export function backoffMs(failures, random, retryAfterMs = 0, limits = LIMITS) {
  const windowMs = Math.min(limits.backoffCapMs, limits.backoffBaseMs * 2 ** Math.min(failures, 30));
  return askedMs(retryAfterMs, random, limits) + random * windowMs;
}

/** What a close code advises: 4500–4999 stop; 4401 come back with a new token; everything else come back. */
export function closeAdvice(code) {
  if (code >= 4500 && code <= 4999) return "stop";
  return code === 4401 ? "refresh" : "reconnect";
}

/** How long a message waits whose handler threw: 1 s·2^(attempt−1), capped, and of that between half and all. */
export function retryMs(attempt, random, limits = LIMITS) {
  const windowMs = Math.min(limits.retryCapMs, limits.retryBaseMs * 2 ** Math.min(attempt - 1, 30));
  return Math.ceil(windowMs * (0.5 + random / 2));
}
