"""Messages out of a gateway into files, and back: `archive` and `replay`."""
