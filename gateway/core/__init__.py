"""Rules of the gateway that need no I/O, clock or chance: what may be served from memory, and for how long."""
