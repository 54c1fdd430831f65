"""Frames between roles, and how they are encoded. Sockets belong to the modules that use the frames."""
