"""One module per page: its endpoint and what it is allowed to do."""
