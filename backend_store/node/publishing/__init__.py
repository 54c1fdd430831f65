"""What becomes of a publish in a cycle: duplicates, idempotency keys, limits, places in the log."""
