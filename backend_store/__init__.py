"""The durable queue: decides what happens to each message, logs it, and keeps it until it is settled."""
