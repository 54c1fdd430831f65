"""The commands of `pushq`, one noun per file; `gateway.cli` lists them.

A command parses its arguments with click, calls the server through `push.client`, prints data on stdout and messages
for people on stderr. Heavy modules are imported inside the functions that need them, so that `pushq --help` answers at
once.
"""
