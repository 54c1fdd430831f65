"""Validates requests before a coordinator is asked, naming the field, so that every driver refuses the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from backend_store.cluster.core.values import Compare, Delete, Field, Get, Operation, Put, Transaction
from backend_store.cluster.limits import (
    KEY_BYTES_MAX,
    OPERATIONS_PER_TRANSACTION_MAX,
    RECORDS_PER_PAGE_MAX,
    SESSION_SECONDS_MAX,
    SESSION_SECONDS_MIN,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from backend_store.model import InvalidRequest

NUMBER_MAX: Final = 2**63 - 1


def check_transaction(transaction: Transaction) -> None:
    """Raises `InvalidRequest`."""
    parts = {"compares": transaction.compares, "then": transaction.then, "otherwise": transaction.otherwise}
    for name, part in parts.items():
        if len(part) > OPERATIONS_PER_TRANSACTION_MAX:
            raise InvalidRequest(f"{name} has {len(part)} entries; at most {OPERATIONS_PER_TRANSACTION_MAX} are taken")
    size = sum(_check_compare(f"compares[{at}]", compare) for at, compare in enumerate(transaction.compares))
    for name, branch in (("then", transaction.then), ("otherwise", transaction.otherwise)):
        size += _check_branch(name, branch)
    if size > TRANSACTION_BYTES_MAX:
        raise InvalidRequest(f"the transaction has {size} bytes; at most {TRANSACTION_BYTES_MAX} are taken: split it")


def _check_compare(name: str, compare: Compare) -> int:
    check_key(f"{name}.key", compare.key)
    expected = compare.expected
    if compare.field is Field.VALUE:
        if not isinstance(expected, bytes):
            raise InvalidRequest(f"{name}.expected must be bytes, as a value is compared")
        return len(compare.key) + _check_value(f"{name}.expected", expected)
    if isinstance(expected, bytes) or not 0 <= expected <= NUMBER_MAX:
        raise InvalidRequest(f"{name}.expected must be a number from 0, as {compare.field.value} is compared")
    return len(compare.key)


def _check_branch(name: str, branch: Sequence[Operation]) -> int:
    written: set[bytes] = set()
    size = 0
    for at, operation in enumerate(branch):
        check_key(f"{name}[{at}].key", operation.key)
        size += len(operation.key)
        match operation:
            case Put(key, value, session):
                size += _check_value(f"{name}[{at}].value", value)
                if session is not None and not 0 < session <= NUMBER_MAX:
                    raise InvalidRequest(f"{name}[{at}].session {session} is no session")
            case Delete(key):
                pass
            case Get():
                continue
            case _:
                assert_never(operation)
        if key in written:
            raise InvalidRequest(f"{name}[{at}].key {key!r} is written twice; a branch writes a key once at most")
        written.add(key)
    return size


def check_key(name: str, key: bytes) -> None:
    """Raises `InvalidRequest` for a key that no record can have."""
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise InvalidRequest(f"{name} has {len(key)} bytes; 1 to {KEY_BYTES_MAX} are taken")


def _check_value(name: str, value: bytes) -> int:
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(f"{name} has {len(value)} bytes; at most {VALUE_BYTES_MAX} are taken")
    return len(value)


def check_prefix(prefix: bytes) -> None:
    """Raises `InvalidRequest`. The empty prefix is every key."""
    if len(prefix) > KEY_BYTES_MAX:
        raise InvalidRequest(f"prefix has {len(prefix)} bytes; at most {KEY_BYTES_MAX} are taken")


def check_read(prefix: bytes, after: bytes, limit: int) -> None:
    """Raises `InvalidRequest`."""
    check_prefix(prefix)
    if after and not after.startswith(prefix):
        raise InvalidRequest(f"after {after!r} is no key of the prefix {prefix!r}")
    if not 1 <= limit <= RECORDS_PER_PAGE_MAX:
        raise InvalidRequest(f"limit {limit} is not from 1 to {RECORDS_PER_PAGE_MAX}")


def check_ttl(ttl_s: int) -> None:
    """Raises `InvalidRequest`."""
    if not SESSION_SECONDS_MIN <= ttl_s <= SESSION_SECONDS_MAX:
        raise InvalidRequest(f"ttl_s {ttl_s} is not from {SESSION_SECONDS_MIN} to {SESSION_SECONDS_MAX} whole seconds")
