"""Logs, traces, metrics and the audit log of every role."""
