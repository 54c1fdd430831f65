"""Bounds of a node, each with its unit last."""

INBOX_MESSAGES_MAX = 10_000
INBOX_BYTES_MAX = 32 * 1024 * 1024
"""Publishes of one partition that may wait for a commit; above it they are refused as `overloaded`."""
SWEEP_ROWS_PER_COMMIT = 256
RECOVERY_ROWS_PER_READ = 256
PEEK_MESSAGES_MAX = 100_000
"""Messages one peek request looks at before it answers with a cursor."""
SPACE_CHECK_SECONDS = 1.0
VERIFY_AT_START_BYTES_MAX = 1 << 30
"""A bigger file is not read through before serving; entries are verified whenever they are read."""
