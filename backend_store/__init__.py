"""The durable queue store: decides what happens to each message, logs the decision, and keeps the message until it is
settled."""
