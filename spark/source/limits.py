"""Bounds of the data source, each with its unit last."""

from __future__ import annotations

from typing import Final

REQUEST_SECONDS_MAX: Final = 60.0
"""How long one request may take before it is sent again."""
RETRY_SECONDS_MAX: Final = 120
"""How long a failing request is retried, unless `retrySeconds` is given."""
RETRY_PAUSE_SECONDS_MAX: Final = 5.0
"""The longest pause before a retry."""
ANSWER_BYTES_MAX: Final = 512 * 1024 * 1024
"""The largest answer that is read: a page of a range exceeds its own bound by at most one chunk of messages."""
RANGE_MESSAGES: Final = 5_000
"""Messages asked for with one read of a range."""
SPLIT_OFFSETS_DEFAULT: Final = 100_000
"""Offsets of a partition that one task reads, unless `offsetsPerTask` is given."""
TASKS_MAX: Final = 10_000
"""Tasks that one batch is cut into; beyond that, splits grow."""
RECEIVE_MESSAGES: Final = 100
"""Messages asked for with one receive."""
QUEUE_BATCH_MESSAGES_DEFAULT: Final = 1_000
"""Messages of a work queue in a batch, unless `maxMessagesPerBatch` is given."""
QUEUE_BATCH_MESSAGES_MAX: Final = 10_000
"""The largest `maxMessagesPerBatch` of a work queue: its messages pass through the driver."""
RECEIPTS_PER_REQUEST: Final = 1_000
"""Receipts settled with one request."""
PUBLISH_MESSAGES_MAX: Final = 1_000
"""Messages of one publish; the server takes no more."""
PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
"""A publish of this size takes no more messages."""
ROWS_COUNTED_MAX: Final = 5_000_000
"""Rows of one task whose ids can be derived from their contents: each costs some 100 bytes of memory."""
TOKEN_BYTES_MAX: Final = 8 * 1024
"""Length of a key."""
