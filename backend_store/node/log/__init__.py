"""A partition's log on the disk: rows written, read, sought, trimmed, and set aside where damaged."""
