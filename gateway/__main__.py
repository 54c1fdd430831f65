"""`python -m gateway` is `pushq`."""

from gateway.cli import main

main()
