"""Independent hosts: each one's lane table, and its door for publishes."""
