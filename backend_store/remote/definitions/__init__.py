"""Which queues there are and where they lie: definitions, keys, moves between clusters."""
