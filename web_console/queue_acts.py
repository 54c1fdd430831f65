"""Forms about whole queues: create, change, purge and delete."""

from __future__ import annotations

from typing import Any

import msgspec

from web_console.forms import Done, Form, given, typed, version, whole_of, wrong
from web_console.pages.settings import Field, fields
from web_console.visit import Visit, page_path, queue_path
from web_console.wording import counted


async def create_queue(visit: Visit, form: Form) -> Done:
    name = form.get("name", "").strip()
    config = given(form, "kind", "ordering", "delivery")
    if "/" in name or not name:
        raise wrong("a queue name must have 1 to 128 characters from A-Z a-z 0-9 _ . -", "name")
    await visit.ask("PUT", queue_path(name), config)
    return Done(f"Queue {name} created", page_path("queues", name))


async def purge(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    typed(form, name)
    job = (await visit.ask("POST", queue_path(name, "purge"), {"confirm": name})).json()
    return Done(f"Purged {counted(job['total'], 'message')} of {name}")


async def change_queue(visit: Visit, form: Form) -> Done:
    """Sends the fields that differ from the form's page; fails if the queue was changed since."""
    name, known = form.get("queue", ""), version(form)
    config = (await visit.get(queue_path(name)))["config"]
    there = fields(visit.server.queue_changes(), config)
    changes = {
        field.name: _value(field, text)
        for field in there
        if (text := form.get(f"set.{field.name}", field.text).strip()) != field.text
    }
    if not changes:
        return Done("No differences; nothing was changed")
    await visit.ask("PATCH", queue_path(name), changes, headers=known)
    return Done(f"Changed {', '.join(changes)} of {name}")


def _value(field: Field, text: str) -> Any:
    if not text:
        return None
    if field.kind == "text" or (field.kind == "choice" and text not in ("true", "false")):
        return text
    if field.kind == "number":
        return whole_of(text, field.name)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise wrong(f"{field.name} is {text[:50]!r}; it is JSON", field.name) from None


async def delete_queue(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    typed(form, name)
    target = form.get("move_to", "").strip()
    discard = "" if target else "true"
    reply = await visit.ask("DELETE", queue_path(name), confirm=name, move_to=target, discard=discard)
    held = reply.json()["discarded"]
    lost = "and its messages" if held is None else f"{counted(held, 'message')} with it"
    said = f"its messages go to {target}" if target else lost
    return Done(f"Queue {name} deleted, {said}", page_path("queues"))
