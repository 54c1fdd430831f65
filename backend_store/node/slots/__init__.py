"""Slots of a queue's partitions: what a partition knows of them, and how they move."""
