/** What may be said to the client beside a body, by name; a name that is not known is refused with the nearest one. */

/**
 * @typedef {string | {token: string, expires_at?: string}} Token
 * @typedef {"ws" | "sse" | "eventsource" | "poll"} TransportName
 * @typedef {"earliest" | "latest" | {seq: number} | {time: string | Date} | {cursor: string}} From
 * @typedef {{id: string, seq: number, partition: number, duplicate: boolean}} Confirmation
 *
 * @typedef {object} ConnectOptions
 * @property {string} [url] base URL of the server; the page's own origin when left out
 * @property {string | (() => Token | Promise<Token>)} [token] API key or JWT; asked for on connect, and before its end
 * @property {TransportName[]} [transports] which to try, in this order
 * @property {string} [producer] who publishes, in messages that are numbered; random when left out
 * @property {number | Record<string, number>} [firstNumber] where a known producer's numbers go on, for each queue:
 *   what `nextNumbers` was when it ended; from 1 when left out
 * @property {boolean} [numberAlways] number and stamp messages also for queues that do not sort by it
 * @property {boolean | "auto"} [publishIds] whether a message without an id gets one; "auto", as when left out: unless
 *   its queue does not drop duplicates
 * @property {string} [replyQueue] where replies to `request` arrive: a work queue of this client alone, or a stream
 *   that several share
 * @property {Partial<typeof LIMITS>} [limits]
 * @property {(direction: "in" | "out", text: string) => void} [trace] sees every frame as text, tokens left out
 * @property {typeof WebSocket} [WebSocket] for a runtime without one (Node 20), and likewise `EventSource` and `fetch`
 * @property {typeof EventSource} [EventSource]
 * @property {typeof fetch} [fetch]
 *
 * @typedef {object} PublishOptions
 * @property {string} [id] told apart by it where the queue drops duplicates; random when left out
 * @property {string} [key] messages of one key stay in order on a `strict` queue
 * @property {number} [priority] 0 to the queue's `priorities` − 1, higher first
 * @property {number} [delayMs] delivered that much later
 * @property {Date | string} [deliverAt] delivered then
 * @property {number} [ttlMs] not delivered any more after that
 * @property {Record<string, string>} [headers]
 * @property {string} [contentType] of a body that is bytes
 * @property {string} [replyTo] the queue that waits for a reply
 * @property {string} [correlationId] what the reply has to carry
 * @property {string} [producer] these three number and stamp a message; left out, the client does where the queue asks
 * @property {number} [producerSeq]
 * @property {Date | string} [timestamp]
 * @property {string} [idempotencyKey] sent again with the same key, also by another page, nothing is stored
 * @property {string} [traceparent] W3C Trace Context, which comes back with each delivery
 * @property {string} [tracestate]
 * @property {number} [timeoutMs] how long this publish waits, 1 to 60,000 ms: what the server has not begun by then it
 *   never will, and nothing is sent again later; when left out, the server's time, and again for `publishTimeoutMs`
 *
 * @typedef {object} SubscribeOptions
 * @property {number} [credit] messages held here at once; a stream without it is sent as fast as it is read
 * @property {string} [group] consumer group of a stream: its members share the messages and acknowledge them
 * @property {From} [from] where a stream begins
 * @property {"manual" | "auto"} [ack] auto: a message is gone once it was sent (at most once)
 * @property {number} [visibilityTimeoutMs] lease of one message; extended while its handler runs
 * @property {number} [maxHandlerMs] how long a handler's lease is extended
 * @property {boolean | "key"} [inOrder] one after the other; "key": those of one key. Left out, the queue decides
 *
 * @typedef {PublishOptions & {timeoutMs?: number, replyQueue?: string}} RequestOptions
 * @typedef {{delayMs?: number, reason?: string}} NackOptions
 * @typedef {{publish?: {queue: string, messages: (PublishOptions & {body: unknown})[]}[]}} AckOptions
 */

const OTHER_WORDS = Object.freeze({key: "token", apiKey: "token"}); // for options
export const CONNECT_OPTIONS = [
  "url", "token", "transports", "producer", "firstNumber", "numberAlways", "publishIds", "replyQueue", "limits", "trace",
  "WebSocket", "EventSource", "fetch",
];
export const SUBSCRIBE_OPTIONS = [
  "credit", "group", "from", "ack", "visibilityTimeoutMs", "visibility_timeout_ms", "maxHandlerMs", "inOrder",
];

/** Throws for a name that is not known, with the nearest one. */
export function checkNames(what, given, known) {
  for (const name of Object.keys(given)) {
    if (known.includes(name)) continue;
    const [near] = known.map((other) => [edits(name, other), other]).sort(([one], [other]) => one - other);
    const meant = OTHER_WORDS[name] ?? (near[0] <= Math.max(2, name.length / 3) ? near[1] : null);
    const hint = known.includes(meant) ? `; did you mean "${meant}"?` : "";
    throw new TypeError(`${what} has no option "${name}"${hint}`);
  }
}

/** How many letters to add, drop or change from one word to the other, upper or lower case alike. */
function edits(one, other) {
  let row = Array.from({length: other.length + 1}, (_, index) => index);
  for (const [index, letter] of [...one.toLowerCase()].entries()) {
    const next = [index + 1];
    [...other.toLowerCase()].forEach((wanted, at) => {
      next.push(Math.min(row[at] + (letter === wanted ? 0 : 1), row[at + 1] + 1, next[at] + 1));
    });
    row = next;
  }
  return row.at(-1);
}
