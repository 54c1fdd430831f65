"""Seeded worlds over the real cores: faults drawn by a seed, promises checked at every step."""
