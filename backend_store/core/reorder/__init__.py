"""Queues that reorder: by the numbers of their producers or by their clocks."""
