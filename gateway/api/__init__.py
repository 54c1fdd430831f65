"""The HTTP API, one module per kind of resource. `table` lists all operations; the API documents are made from it."""
