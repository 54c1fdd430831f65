/**
 * Pushq for browsers and Node: the far end of a message's path, where a page publishes, is pushed to, and acknowledges.
 *
 *     const pushq = connect({url: location.origin, token: async () => (await fetch("/my/token")).text()});
 *     const {id, seq} = await pushq.publish("orders", {item: 7}, {key: "customer-1", delayMs: 5_000});
 *     pushq.subscribe("orders", {credit: 16}, async ({body}) => handle(body)); // resolved = ack, thrown = nack
 *     const {body} = await pushq.request("prices", {item: 7}, {timeoutMs: 2_000});
 *
 * A page imports one file, as it is, without a build: it is joined from those in `src`. They are, from the outside in:
 *
 *     client, session                 what a page holds, and the loop that connects, carries, waits, and connects again
 *     message, subscription           in the user's hands; behind them consumer, lines, delivery, settling
 *     publisher, numbering, clock     from a call to its confirmation, and its place in the order
 *     replies                         who waits for which reply
 *     transports/websocket, …/http    the same verbs, the same frames; beside them api, …/events, …/connections
 *     options, arguments, bodies      what the functions take, and refuse; outgoing: how it travels
 *     errors, backoff, credential     whose turn it is, and when again
 *     config, timers, ids             every limit by name; what all of these use
 *
 * Both links (one WebSocket; SSE, EventSource or long-poll over fetch) hand on the same frames, so nothing above them
 * knows which one is in use.
 *
 * Delivery is at least once in both directions unless the queue says otherwise: a publish that was cut is sent again
 * as the same message (`id`, number, stamp), a message whose ack was cut is delivered again with `attempt` 2.
 *
 * Names: what the server sent keeps the wire's spelling (`message.published_at`), and can be read in camelCase too;
 * options may be given either way (`delayMs`, `delay_ms`). `pushq.d.ts` declares all that is public.
 */

export {LIMITS} from "./config.js";
export {LeaseLost, NoReplyQueue, PushqError, RequestTimeout} from "./errors.js";
export {askedMs, backoffMs, closeAdvice, retryMs} from "./backoff.js";
export {tokenExpiry} from "./credential.js";
export {HybridClock} from "./clock.js";
export {Message} from "./message.js";
export {Subscription} from "./subscription.js";
export {EventParser} from "./transports/events.js";
export {Client, connect} from "./client.js";
