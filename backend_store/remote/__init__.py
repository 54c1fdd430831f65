"""The store of another process, as a gateway sees it: the same queues, asked over a line."""
