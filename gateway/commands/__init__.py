"""The commands of `pushq`, one noun a file; `gateway.cli` lists them.

A command parses with click, asks the server through `push.client`, puts data on stdout and talks on stderr. Heavy
modules are imported inside the functions that need them, so that `pushq --help` answers at once.
"""
