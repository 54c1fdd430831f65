"""Group commit: what waits for a partition is decided in one cycle and becomes one transaction."""
