"""A program read from standard input, run as by `python -`. See `page_command`."""

import sys

if __name__ == "__main__":
    exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
