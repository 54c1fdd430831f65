"""The HTTP API, a file for each kind of resource. `table` lists every operation; the documents are made from it."""
