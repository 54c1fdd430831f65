"""Alerts: rules about queues and the process, the alerts that they raise, receivers and webhooks, and silences."""
