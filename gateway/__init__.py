"""HTTP and the command line: checks a caller's request, hands it to the store and answers with what became of it."""
