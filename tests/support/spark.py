"""Small usage files, and a way to run a job over them as its command does."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from gateway.usage.files import packed, write_durably
from gateway.usage.schema import MinuteRow

BEGIN = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)


def ran(session: SparkSession, job: ModuleType, source: Path, to: Path, *more: str) -> dict[str, Any]:
    parser = ArgumentParser()
    job.add_arguments(parser)
    done: dict[str, Any] = job.run(session, parser.parse_args(["--from", str(source), "--to", str(to), *more]))
    return done


def stamp(minute: int) -> str:
    return (BEGIN + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def file(folder: Path, kind: str, number: int, rows: Sequence[msgspec.Struct]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{kind}-node-1-20261120T220000000Z-{number:08d}.ndjson.gz"
    write_durably(path, packed(rows))
    return path


def minute(at: int, operation: str = "publish", tenant: str = "a", messages: int = 3, requests: int = 2) -> MinuteRow:
    counts = [requests - 1, 0, 0, 1, 0, 0, 0, 0]
    return MinuteRow(
        1,
        "node-1",
        stamp(at),
        tenant,
        "key",
        "q",
        operation,
        "http",
        "ok",
        requests,
        messages,
        10,
        20,
        0.5,
        counts,
        False,
    )


def died_while_days_moved(to: Path, table: str, day: str) -> None:
    """Restores a folder to the moment when a day named by the journal was not yet in place."""
    aside = to / "_aside" / "x" / table
    aside.mkdir(parents=True)
    (to / table / f"day={day}").rename(aside / f"day={day}")
    (to / "_journal.json").write_text(json.dumps({"aside": "_aside/x", "files": []}))
