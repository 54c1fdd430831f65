"""Views of a partition, run: work queues, consumer groups, queues that reorder, acks."""
