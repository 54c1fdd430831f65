"""Orders from a shop to a worker: `python -m push.client.example` against a running server.

It creates the queue "orders", publishes a few, has one of them fail the first time, and ends when all are done.
"""

from __future__ import annotations

import asyncio
import sys

from push.client import Admin, LeaseLost, Message, Pushq, connect

QUEUE = "orders"
ORDERS = 5


async def shop(pushq: Pushq) -> None:
    """Publish all orders at once: the client puts them in one frame, and each call returns when its message is
    stored."""
    stored = await asyncio.gather(*(pushq.publish(QUEUE, {"order": n}, key=f"customer-{n}") for n in range(ORDERS)))
    print(f"published {len(stored)} orders", file=sys.stderr)


async def worker(pushq: Pushq) -> None:
    """Handle orders until all are done. Up to ten are held here, and their leases are extended meanwhile."""
    done: set[int] = set()
    async for message in pushq.subscribe(QUEUE, credit=10):
        order: int = message.body["order"]
        if order == 2 and message.attempt == 1:
            await message.nack(reason="the printer jammed")
            continue
        if await finish(message):
            print(f"order {order} done at attempt {message.attempt}")
            done.add(order)
        if len(done) == ORDERS:
            return


async def finish(message: Message) -> bool:
    """Ack. After a lost lease the message comes again, to this worker or another."""
    try:
        await message.ack()
    except LeaseLost:
        return False
    return True


async def main() -> None:
    async with Admin() as admin:
        await admin.create_queue(QUEUE)
    async with connect() as pushq:
        await asyncio.gather(shop(pushq), worker(pushq))


if __name__ == "__main__":
    asyncio.run(main())
