"""A program that comes on the standard input, as `python -` runs it. See `page_command`."""

import sys

if __name__ == "__main__":
    exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
