"""The data types of a coordinator: records with revisions, compares, operations, transactions and changes.

A *revision* counts the transactions that changed something, over all keys. It never goes back and is never reused.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

Revision = NewType("Revision", int)
"""Position in the history of a coordinator. 0 stands for "before anything"."""

SessionId = NewType("SessionId", int)
"""A session, from 1 to 2^63 - 1."""

NEVER = Revision(0)


@dataclass(frozen=True, slots=True)
class Record:
    """A key with its value, as of one revision."""

    key: bytes
    value: bytes
    created_at: Revision
    """When the key was created; another revision after it was deleted and made again."""
    changed_at: Revision
    version: int
    """How often it was written since it was created, from 1."""
    session: SessionId | None = None
    """The record is deleted when this session ends."""


class Field(enum.Enum):
    """The field of a record that is compared. Of an absent key, numbers are 0, and no value matches."""

    CREATED_AT = "created_at"
    CHANGED_AT = "changed_at"
    VERSION = "version"
    VALUE = "value"


class Relation(enum.Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one key. `expected` is bytes for `Field.VALUE`, else a number from 0."""

    key: bytes
    field: Field
    relation: Relation
    expected: int | bytes


def absent(key: bytes) -> Compare:
    return Compare(key, Field.CREATED_AT, Relation.EQUAL, 0)


def present(key: bytes) -> Compare:
    return Compare(key, Field.CREATED_AT, Relation.GREATER, 0)


def created_at(key: bytes, revision: Revision) -> Compare:
    """The record is the one created at that revision, whatever was written to it since."""
    return Compare(key, Field.CREATED_AT, Relation.EQUAL, revision)


def changed_at(key: bytes, revision: Revision) -> Compare:
    """The record was not written since that revision; with revision 0: it is absent."""
    return Compare(key, Field.CHANGED_AT, Relation.EQUAL, revision)


def has_value(key: bytes, value: bytes) -> Compare:
    return Compare(key, Field.VALUE, Relation.EQUAL, value)


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a value. Without a session the record is bound to none afterwards, even if it was before."""

    key: bytes
    value: bytes
    session: SessionId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a record; a missing one is no error."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Reads a record within the transaction, after the operations before it."""

    key: bytes


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Transaction:
    """If all compares hold, performs everything of `then`, else everything of `otherwise`, at one revision.

    A branch writes a key once at most.
    """

    compares: Sequence[Compare] = ()
    then: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()

    @property
    def is_read_only(self) -> bool:
        return all(isinstance(operation, Get) for operation in (*self.then, *self.otherwise))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which branch was taken, the revision afterwards, and what each `Get` of that branch found, in order."""

    succeeded: bool
    revision: Revision
    found: tuple[Record | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Records in the order of their keys, true at `revision`."""

    records: tuple[Record, ...]
    revision: Revision
    count: int
    """The number of all records of the prefix after `after`, on this page or not, and whenever they were changed."""
    has_more: bool
    """More records that match the request follow this page."""


@dataclass(frozen=True, slots=True)
class Event:
    """One key at one revision: its record from then on. None: it was deleted."""

    key: bytes
    record: Record | None


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one revision below a prefix. Without events: nothing changed there up to this revision."""

    revision: Revision
    events: tuple[Event, ...] = ()


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys with this prefix. None: there is none, as for the empty prefix."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None
