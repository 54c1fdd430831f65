"""A gateway's client for backends in other processes: the embedded store's queues, reached over connections (lines)."""
