"""Usage: what was counted becomes rows, rows become files, and files are brought together and checked."""
