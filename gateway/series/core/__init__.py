"""Rings of numbers, decided without clocks and files."""
