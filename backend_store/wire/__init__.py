"""Frames between roles: what they look like as bytes. Sockets are the business of those who use them."""
