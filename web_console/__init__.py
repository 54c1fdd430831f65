"""Pages for people: the demo, and the console of operators and customers."""
