"""Rate limits: how much a principal may ask of the gateway, what an answer tells it about the rest, and load
shedding."""
