"""`pushq` on a page that tests run: asks the process of tests for a fork of one that has everything imported.

    python -I -S page_command.py SOCKET ARGUMENTS …

An import of the whole command line takes half a second of a processor, and the pages have a hundred commands. The fork
gets these arguments, this folder and environment, and stdin, stdout and stderr; its exit code is this process's. Where
this process ends first, the fork is ended.
"""

import json
import os
import socket
import sys

PACKET_BYTES_MAX = 1 << 17


def main() -> int:
    where, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(where)
        request = {"arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
        return int(asking.recv(PACKET_BYTES_MAX))


if __name__ == "__main__":
    sys.exit(main())
