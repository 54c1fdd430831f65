"""Rate limits: how much a principal may ask of the gateway, and what an answer tells it about the rest."""
