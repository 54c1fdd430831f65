"""Building blocks of tests: real server processes, free ports, the machine's prerequisites."""
