/**
 * The types of `pushq.js`: all that is public, nothing else. `tests/js/declarations.test.mjs` holds the two in step.
 */

export type TransportName = "ws" | "sse" | "eventsource" | "poll";

/** An API key or a JWT, or either with its end. */
export type Token = string | {token: string; expires_at?: string};

/** Where a stream begins. */
export type From = "earliest" | "latest" | {seq: number} | {time: string | Date} | {cursor: string};

// ------------------------------------------------------------------------------------------------------- The client

export function connect(options?: ConnectOptions): Client;

export interface ConnectOptions {
  /** Base URL of the server; the page's own origin when left out. */
  url?: string;
  /** Asked for on connect, and again before it expires. */
  token?: string | (() => Token | Promise<Token>);
  /** Which to try, in this order. The earlier names of two are taken, too. */
  transports?: (TransportName | "websocket" | "longpoll")[];
  /** Who publishes, in messages that are numbered; random when left out. */
  producer?: string;
  /** Where a known producer's numbers go on, for all queues or by queue: what `nextNumbers` was when it ended. */
  firstNumber?: number | Record<string, number>;
  /** Number and stamp messages also for queues that do not sort by it. */
  numberAlways?: boolean;
  /** Whether a message without an id gets one; "auto", as when left out: unless its queue does not drop duplicates. */
  publishIds?: boolean | "auto";
  /** Where replies to `request` arrive: a work queue of this client alone, or a stream that several share. */
  replyQueue?: string;
  limits?: Partial<Limits>;
  /** Sees every frame as text, tokens left out. */
  trace?: (direction: "in" | "out", text: string) => void;
  /** For a runtime without one (Node 20). */
  WebSocket?: typeof WebSocket;
  EventSource?: typeof EventSource;
  fetch?: typeof fetch;
}

/** A client of one server: it reconnects by itself, and what is unconfirmed goes again. */
export class Client extends EventTarget {
  constructor(options: ConnectOptions);
  readonly state: "connecting" | "connected" | "waiting" | "closed" | "failed";
  readonly limits: Readonly<Limits>;
  /** Which transport carries messages now, null while there is none. */
  readonly transport: TransportName | null;
  /** Who publishes, in messages that are numbered. */
  readonly producer: string;
  /** For each queue that was sent a number, the next one. */
  readonly nextNumbers: Record<string, number>;
  /** How many replies came after their request had ended. They are dropped. */
  readonly lateReplies: number;
  /** Resolves once the message is stored. `body` is a JSON value, or bytes: any view or buffer. */
  publish(queue: string, body: unknown, options?: PublishOptions): Promise<Confirmation>;
  /** Publishes in order; rejects with the first failure. */
  publishMany(queue: string, messages: OutgoingMessage[]): Promise<Confirmation[]>;
  /** Publishes a request and resolves with the reply to it. Rejects with `RequestTimeout`, or `NoReplyQueue`. */
  request<Body = any>(queue: string, body: unknown, options?: RequestOptions): Promise<Message<Body>>;
  /**
   * A handler that resolves acks its message, one that throws nacks it, with what was thrown as reason: again after the
   * queue's back-off, else after 1 s, doubled with each attempt up to 60 s (`limits.retryBaseMs`, `retryCapMs`), less up
   * to half of it by chance.
   */
  subscribe<Body = any>(
    queue: string,
    options: SubscribeOptions | null | undefined,
    handler: (message: Message<Body>) => unknown,
  ): Subscription;
  /** Drops the connection and connects again, say after a change of network. */
  reconnect(): void;
  /** Waits a few seconds at most for handlers and for what was published; then leaves, and open leases return. */
  close(): Promise<void>;
  addEventListener<Name extends keyof ClientEvents>(
    name: Name,
    listener: ((event: CustomEvent<ClientEvents[Name]>) => void) | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    name: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/** The events of a client, each with its `detail`. */
export interface ClientEvents {
  state: {state: Client["state"]; transport: TransportName; error?: PushqError; retryMs?: number};
  /** Leases ended before these messages were settled: they are delivered again, perhaps to others. */
  lost: {queue: string; messages: Message[]};
  /** A stream no longer has what lay between the two. */
  gap: {queue: string; from: number; to: number; partition?: number};
  /** A stream could not go on from its cursor, and goes on from this one. */
  reset: {queue: string; cursor: string | undefined};
  /** The server ended a subscription. */
  ended: {queue: string; error: PushqError};
  /** The server is about to leave. */
  bye: {code: number; reason: string; retry_ms: number | undefined};
  /** What a handler threw, why there is no connection, or what will be tried again; on the console if nobody listens. */
  problem: {error: Error; queue?: string; message?: Message};
}

// ------------------------------------------------------------------------------------------------------- Publishing

/** Options of one message. Each may also be given in the wire's spelling, `delay_ms` say. */
export interface PublishOptions {
  /** Told apart by it where the queue drops duplicates; random when left out. */
  id?: string;
  /** Messages of one key stay in order on a `strict` queue. */
  key?: string;
  /** 0 to the queue's `priorities` - 1, higher first. */
  priority?: number;
  delayMs?: number;
  deliverAt?: Date | string;
  /** Not delivered any more after that. */
  ttlMs?: number;
  headers?: Record<string, string>;
  /** Of a body that is bytes. */
  contentType?: string;
  replyTo?: string;
  correlationId?: string;
  /** These three number and stamp a message; left out, the client does where the queue asks for it. */
  producer?: string;
  producerSeq?: number;
  timestamp?: Date | string;
  /** Sent again with the same key, also by another page, nothing is stored. */
  idempotencyKey?: string;
  /** W3C Trace Context, which comes back with each delivery. */
  traceparent?: string;
  tracestate?: string;
  /** How long this publish waits, 1 to 60,000 ms; then it is not sent again, and what was not begun never will be. */
  timeoutMs?: number;
  [wireSpelling: `${string}_${string}`]: unknown;
}

export interface OutgoingMessage extends PublishOptions {
  body: unknown;
}

/**
 * Where the message is stored. Of a `duplicate` it is the first one's place; of one that the server knew by its number
 * alone that may be forgotten, then `seq` is null, and so is an `id` that the message did not have.
 */
export interface Confirmation {
  id: string | null;
  seq: number | null;
  partition: number;
  duplicate: boolean;
}

export interface RequestOptions extends PublishOptions {
  /** How long to wait for the reply; the publish of the request is part of it. */
  timeoutMs?: number;
  /** Where the reply arrives; else the client's own. */
  replyQueue?: string;
}

// -------------------------------------------------------------------------------------------------------- Receiving

export interface SubscribeOptions {
  /** Messages held here at once; a stream without it is sent as fast as it is read. */
  credit?: number;
  /** Consumer group of a stream: its members share the messages and acknowledge them. */
  group?: string;
  /** Where a stream begins. */
  from?: From;
  /** auto: a message is gone once it was sent (at most once). */
  ack?: "manual" | "auto";
  /** Lease of one message; extended while its handler runs. */
  visibilityTimeoutMs?: number;
  /** How long a handler's lease is extended. */
  maxHandlerMs?: number;
  /** One after the other; "key": those of one key. Left out, the queue decides. */
  inOrder?: boolean | "key";
  [wireSpelling: `${string}_${string}`]: unknown;
}

/** One delivery of one message. */
export class Message<Body = any> {
  private constructor();
  readonly id: string;
  /** Rises within (partition, priority), with gaps. */
  readonly seq: number;
  readonly partition: number;
  /** The JSON value that was published; a Uint8Array when it was anything else. */
  readonly body: Body;
  readonly body_base64?: string;
  readonly content_type: string;
  readonly headers: Record<string, string>;
  readonly key: string | null;
  readonly priority: number;
  /** How often it was delivered, from 1. */
  readonly attempt: number;
  readonly published_at: string;
  readonly expires_at?: string;
  /** Null where there is nothing to settle: `ack: "auto"`, at most once, a stream without a group. */
  readonly receipt: string | null;
  readonly reply_to?: string;
  readonly correlation_id?: string;
  /** The W3C trace context that it was published with. */
  readonly traceparent?: string;
  readonly tracestate?: string;
  /** On a queue sorted by producer or clock. `late`: its place had been handed out when it came. */
  readonly ordering?: {timestamp: string; late: boolean};
  /** Who published it, and that producer's own number of it, where the publisher gave them. */
  readonly producer?: string;
  readonly producer_seq?: number;
  readonly dead_letter?: DeadLetter;

  readonly queue: string;
  readonly contentType: string;
  readonly publishedAt: Date;
  readonly expiresAt: Date | null;
  readonly replyTo: string | null;
  readonly correlationId: string | null;
  readonly producerSeq: number | null;
  /** Null for a message that is none. */
  readonly deadLetter: DeadLetter | null;
  /** True when its lease has ended before it was settled: somebody else may have it. */
  readonly lost: boolean;
  /** Aborts when the lease is lost. */
  readonly signal: AbortSignal;
  /** Done. Rejects with `LeaseLost`; `publish` is stored in the same step, all or nothing. */
  ack(options?: AckOptions): Promise<void>;
  /** Not done: delivered again after `delayMs`, else after the queue's own back-off. */
  nack(options?: NackOptions): Promise<void>;
  /** Not begun: somebody else may have it, at once or after `delayMs`, and it was no attempt. */
  release(options?: {delayMs?: number}): Promise<void>;
  /** Holds it for `ms` from now. A running handler need not: its lease is extended. */
  extend(ms: number): Promise<void>;
  /** Publishes the reply to whoever asked. */
  reply(body: unknown, options?: PublishOptions): Promise<Confirmation>;
}

/** Why a message lies in a dead-letter queue, and the queue it died in. */
export interface DeadLetter {
  from: string;
  reason: "max_attempts" | "expired" | "overflow" | "undeliverable" | "queue_deleted";
  at: string;
  attempts: number;
  history: object[];
}

export interface AckOptions {
  publish?: {queue: string; messages: OutgoingMessage[]}[];
}

export interface NackOptions {
  delayMs?: number;
  /** Kept with the message, and shown with its dead letter. */
  reason?: string;
}

export class Subscription {
  private constructor();
  readonly queue: string;
  readonly credit: number;
  /** How long a lease is; the queue's, unless the caller asked for another. */
  readonly visibilityMs: number;
  /** Of a stream's last message taken in: give it to `from` to go on in another page. */
  readonly cursor: string | null;
  /** Resolves when the server has the subscription; rejects when it refuses. */
  readonly ready: Promise<void>;
  /** Resolves when it is over, with the error that ended it. */
  readonly closed: Promise<PushqError | null>;
  /** Starts no more handlers, lets the running ones finish, settles, leaves. */
  close(): Promise<PushqError | null>;
}

// ----------------------------------------------------------------------------------------------------------- Errors

/** An error with a stable `code`: the server's, or one of ours. */
export class PushqError extends Error {
  constructor(code: string, detail: string, more?: ErrorFacts);
  static from(problem: object): PushqError;
  readonly code: string;
  readonly detail: string;
  /** The HTTP status of a server's refusal, else 0. */
  readonly status: number;
  readonly retryAfterMs: number;
  /** What is wrong where in the message; `pointer` is an RFC 6901 pointer. */
  readonly errors: {pointer: string; detail: string}[];
  /** The same may succeed later. */
  readonly retriable: boolean;
}

export interface ErrorFacts {
  status?: number;
  retryAfterMs?: number;
  errors?: object[];
}

/** Nobody replied in time. `isStored`: the request lies in its queue, or did; without it that is not known. */
export class RequestTimeout extends PushqError {
  constructor(queue: string, timeoutMs: number, isStored: boolean);
  readonly queue: string;
  readonly timeoutMs: number;
  readonly isStored: boolean;
}

/** `request` has no queue for the replies, and may not make one; the message says what would help. */
export class NoReplyQueue extends PushqError {
  constructor(detail: string, cause: PushqError);
  readonly cause: PushqError;
}

/** The lease of a message had ended before it was settled: somebody else may have the message. */
export class LeaseLost extends PushqError {
  constructor(queue: string, verdict: string, message: {id: string; attempt: number});
}

// ----------------------------------------------------------------------------------------------- Rules by themselves

/** Stamps that only rise, and that come after every stamp seen; in microseconds since 1970. */
export class HybridClock {
  constructor(aheadMs?: number);
  tick(nowMs: number): number;
  /** Takes note of another's stamp; false for one too far ahead to be true. */
  merge(stampUs: number, nowMs: number): boolean;
  /** As RFC 3339. */
  static format(stampUs: number): string;
  /** NaN for what is no time with a zone. */
  static parse(text: string): number;
}

/** Parses `text/event-stream` from pieces cut anywhere. */
export class EventParser {
  constructor(charsMax?: number);
  push(text: string): {event: string; data: string; id: string}[];
}

/** How long a message waits whose handler threw at this attempt. */
export function retryMs(attempt: number, random: number, limits?: Limits): number;

/** What to keep of a wait that was asked for. */
export function askedMs(ms: number, random: number, limits?: Limits): number;

/** How long to wait before the next try. */
export function backoffMs(failures: number, random: number, retryAfterMs?: number, limits?: Limits): number;

/** What a close code advises. */
export function closeAdvice(code: number): "stop" | "refresh" | "reconnect";

/** When a token ends, in ms since 1970; Infinity when nothing tells. */
export function tokenExpiry(token: Token | null | undefined): number;

/** Every bound by name; `connect({limits})` replaces single ones. */
export const LIMITS: Readonly<Limits>;

export interface Limits {
  publishBufferMessages: number;
  publishBufferChars: number;
  publishFrameMessages: number;
  publishFrameChars: number;
  messageBytes: number;
  publishWindowMessages: number;
  publishTimeoutMs: number;
  publishGraceMs: number;
  publishApartMs: number;
  settleFrameReceipts: number;
  creditReturnedAt: number;
  streamBacklogMessages: number;
  subscriptionCredit: number;
  replyTimeoutMs: number;
  replyTtlMs: number;
  requestsWaiting: number;
  replyCredit: number;
  clockAheadMs: number;
  queuesRemembered: number;
  visibilityTimeoutMs: number;
  maxHandlerMs: number;
  retryBaseMs: number;
  retryCapMs: number;
  openMs: number;
  requestMs: number;
  closeMs: number;
  pollWaitMs: number;
  pollTurnMs: number;
  pollLeaveMs: number;
  pollLastMs: number;
  heldConnections: number;
  eventChars: number;
  silenceGraceMs: number;
  pingMs: number;
  commentMs: number;
  backoffBaseMs: number;
  backoffCapMs: number;
  askedWaitMs: number;
  stableMs: number;
  transportFailures: number;
  refreshAheadMs: number;
  refreshRetryMs: number;
  tickMs: number;
}
