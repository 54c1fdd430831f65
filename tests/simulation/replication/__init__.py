"""Simulated clusters that replicate: the real cores under crashes, cuts and stale words, each world from a seed."""
