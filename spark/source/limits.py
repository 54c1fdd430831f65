"""Limits of the data source, each named with its unit."""

from __future__ import annotations

from typing import Final

REQUEST_SECONDS_MAX: Final = 60.0
"""How long one request may take before it is sent again."""
RETRY_SECONDS_MAX: Final = 120
"""How long a failing request is retried, unless `retrySeconds` is given."""
RETRY_PAUSE_SECONDS_MAX: Final = 5.0
"""The longest pause before a retry."""
ANSWER_BYTES_MAX: Final = 512 * 1024 * 1024
"""The largest response that is read: a page of a range exceeds its own limit by at most one chunk of messages."""
RANGE_MESSAGES: Final = 5_000
"""Messages requested by one read of a range."""
SPLIT_OFFSETS_DEFAULT: Final = 100_000
"""Offsets of a partition that one task reads, unless `offsetsPerTask` is given."""
TASKS_MAX: Final = 10_000
"""Tasks per batch; beyond that, splits grow."""
RECEIVE_MESSAGES: Final = 100
"""Messages requested by one receive."""
QUEUE_BATCH_MESSAGES_DEFAULT: Final = 1_000
"""Messages of a work queue per batch, unless `maxMessagesPerBatch` is given."""
QUEUE_BATCH_MESSAGES_MAX: Final = 10_000
"""The largest `maxMessagesPerBatch` of a work queue: its messages pass through the driver."""
RECEIPTS_PER_REQUEST: Final = 1_000
"""Receipts settled by one request."""
PUBLISH_MESSAGES_MAX: Final = 1_000
"""Messages per publish; the server accepts no more."""
PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes from which a publish takes no further messages."""
ROWS_COUNTED_MAX: Final = 5_000_000
"""Rows of one task whose ids can be derived from their contents: each takes about 100 bytes of memory."""
TOKEN_BYTES_MAX: Final = 8 * 1024
"""The longest key."""
