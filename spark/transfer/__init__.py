"""Copies messages from a gateway to files, and back: `archive` and `replay`."""
