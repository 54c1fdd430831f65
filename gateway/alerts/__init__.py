"""Alerts: rules about queues and the process, what they found, who is told, and who does not want to hear it."""
