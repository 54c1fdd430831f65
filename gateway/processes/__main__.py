"""Entry point of a child of `pushq serve --gateways N`. Only the parent starts it, and tells it its role."""

from __future__ import annotations

import sys

from gateway.processes.child import hired
from gateway.processes.core import EXIT_CANNOT_START, STORAGE
from gateway.roles.errors import CannotStart


def main() -> int:
    try:
        parent, spec = hired()
    except (EOFError, OSError) as error:
        print(f"pushq: {error}; use `pushq serve --gateways N`", file=sys.stderr)
        return EXIT_CANNOT_START
    try:
        if spec.number == STORAGE:
            from gateway.processes.storage import serve_storage

            serve_storage(spec, parent)
        else:
            from gateway.processes.gateway import serve_gateway

            serve_gateway(spec, parent)
    except CannotStart as error:
        parent.failed(str(error))
        return EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())
