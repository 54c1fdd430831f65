/** Every limit of the client, named once. */

/** Every bound of this module by name; `connect({limits: {…}})` replaces single ones. */
export const LIMITS = Object.freeze({
  publishBufferMessages: 10_000, // unconfirmed and waiting together; beyond it publish rejects with `buffer-full`
  publishBufferChars: 16 * 1024 * 1024,
  publishFrameMessages: 100,
  publishFrameChars: 1024 * 1024, // at most 3 MiB as UTF-8: below the 4 MiB at which the server closes for good
  messageBytes: 3 * 1024 * 1024, // of one message as JSON; refused here for the same reason
  publishWindowMessages: 1_000, // sent and not yet confirmed
  publishTimeoutMs: 60_000,
  publishGraceMs: 1_000, // for an answer on its way when the time is over that `publish` was given
  publishApartMs: 100, // messages share a frame, and the time of the first, when their times end so close together
  settleFrameReceipts: 1_000,
  creditReturnedAt: 0.5, // credit that no receipt gives back is returned when this part of it is used up
  streamBacklogMessages: 1_000, // received and not yet handled; beyond it a stream goes on later from its cursor
  subscriptionCredit: 64,
  replyTimeoutMs: 30_000,
  replyTtlMs: 60_000, // of a reply that nobody fetched, in the queue that `request` makes
  requestsWaiting: 10_000, // for their replies
  replyCredit: 1_000,
  clockAheadMs: 500, // a stamp further ahead than this does not move our clock: servers do not believe it either
  queuesRemembered: 10_000, // whose numbers are counted each by itself
  visibilityTimeoutMs: 30_000, // assumed where neither the caller nor the server names the queue's
  maxHandlerMs: 300_000,
  retryBaseMs: 1_000, // after a handler threw, doubled with each attempt, where the queue has no back-off; 0: at once
  retryCapMs: 60_000,
  openMs: 8_000,
  requestMs: 30_000,
  closeMs: 5_000,
  pollWaitMs: 20_000,
  pollTurnMs: 500, // the wait of a poll while others queue for its connection
  pollLeaveMs: 200, // what a poll that is left brings within that goes back
  pollLastMs: 2_000, // and on the last connection there is: the next subscription may need it
  heldConnections: 4, // of a browser's six per host: two stay free for publishes and acks
  eventChars: 4 * 1024 * 1024, // of one event of a stream
  silenceGraceMs: 5_000,
  pingMs: 25_000, // assumed until `connected` names the server's
  commentMs: 15_000, // an SSE stream says something this often
  backoffBaseMs: 500,
  backoffCapMs: 20_000,
  askedWaitMs: 120_000, // of what a server or a proxy asks: of a longer wait, between half of this and all is kept
  stableMs: 5_000, // a connection that lived this long starts the back-off again
  transportFailures: 3, // of a transport that has worked before, until the next one is tried
  refreshAheadMs: 60_000, // a token is replaced so long before it ends, or at half its life
  refreshRetryMs: 5_000,
  tickMs: 1_000,
});

export const REASON_CHARS_MAX = 256; // of a nack
export const CREDIT_MAX = 10_000; // of a subscription; over HTTP the server may not hear of it
export const TIMER_MS_MAX = 2 ** 31 - 1; // a longer timer fires at once
