"""Ready messages: their order by arrival, by key and in fair share, their priorities and attempts."""
