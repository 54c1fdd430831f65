"""One of several processes that share a limit: sends requests as fast as it may for some seconds, and prints how many
passed.

`python -m tests.support.limited_process URL QUOTA SECONDS HOW`; HOW is `http` (each hit waits for its answer) or
`frames` (hits come in bursts of ten, like the frames of a socket).
"""

from __future__ import annotations

import asyncio
import sys
import time

from throttling.decision import Charge
from throttling.redis_store import GcraRedisStorage
from throttling.rules import Rule
from throttling.shared import SharedLimiter


async def ask(url: str, quota: int, seconds: float, how: str) -> int:
    limiter = SharedLimiter(GcraRedisStorage(url), seconds_max=5.0)
    charges = [Charge(Rule("tenant", quota, per=("tenant",)), "acme", 1)]
    allowed = 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for _ in range(1 if how == "http" else 10):
                outcome = limiter.hit(charges) or await limiter.ask(charges)
                allowed += outcome.allowed
            await asyncio.sleep(0)
    finally:
        await limiter.close()
    assert limiter.decided_alone_total == 0, "Redis was unavailable"
    return allowed


if __name__ == "__main__":
    print(asyncio.run(ask(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])))
