"""What forms about whole queues do: made, and emptied."""

from __future__ import annotations

from web_console.forms import Done, Form, given, typed, wrong
from web_console.visit import Visit, page_path, queue_path
from web_console.wording import counted


async def create_queue(visit: Visit, form: Form) -> Done:
    name = form.get("name", "").strip()
    config = given(form, "kind", "ordering", "delivery")
    if "/" in name or not name:
        raise wrong("a queue's name has 1 to 128 of A-Z a-z 0-9 _ . -")
    await visit.ask("PUT", queue_path(name), config)
    return Done(f"Queue {name} is there", page_path("queues", name))


async def purge(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    typed(form, name)
    job = (await visit.ask("POST", queue_path(name, "purge"), {"confirm": name})).json()
    return Done(f"Purged {counted(job['total'], 'message')} of {name}")
