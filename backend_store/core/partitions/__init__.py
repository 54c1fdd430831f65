"""Slots and partitions: which partition takes a message, and how slots move between them."""
