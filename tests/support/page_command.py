"""A Python command on a page that tests run: asks the test process for a fork of one that has everything imported.

    python -I -S page_command.py SOCKET MODULE ARGUMENTS …

Importing the whole server takes most of a second of CPU time, and the pages have a hundred commands. The fork gets
these arguments, this folder and environment, and stdin, stdout and stderr; its exit code becomes this process's. If
this process ends first, the fork is killed; signals that ask this process to end are passed on.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

PACKET_BYTES_MAX = 1 << 17
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    where, *argv = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:

        def pass_on(number: int, _: FrameType | None) -> None:
            asking.send(str(number).encode())

        asking.connect(where)
        request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        return int(asking.recv(PACKET_BYTES_MAX))


if __name__ == "__main__":
    sys.exit(main())
