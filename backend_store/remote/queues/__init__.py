"""Queues and streams of other processes, as a gateway sees them: publish, lease, settle, read."""
