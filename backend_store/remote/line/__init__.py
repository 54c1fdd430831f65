"""Connections from a gateway to backends, what waits for them, and how their room is shared."""
