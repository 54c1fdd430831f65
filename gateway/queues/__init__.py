"""The configuration of queues: what can be set, what the settings mean together, and queues that make themselves."""
