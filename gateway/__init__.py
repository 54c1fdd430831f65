"""The gateway and the command line: checks requests over HTTP, passes them to the store, answers with the result."""
