"""A queue on independent hosts, simulated: lanes, loans, merges, and slots on the move."""
