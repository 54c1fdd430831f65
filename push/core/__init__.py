"""Cores of push, without sockets and clocks: what a session keeps while it has no socket."""
