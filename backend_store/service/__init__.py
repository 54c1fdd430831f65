"""Serves the queues of a backend process to gateways in other processes."""
