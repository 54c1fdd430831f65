"""`python -m pushq` is `pushq`."""

from gateway.cli import main

main()
