"""Usage: counts become rows, rows become files, and files are collected into one folder and verified."""
