"""The arithmetic of series, without clocks and files."""
