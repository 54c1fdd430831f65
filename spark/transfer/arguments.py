"""Arguments of `archive` and `replay`. Keys come from files or the environment, never from arguments."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from spark.source.errors import PushqSourceError

ARCHIVE: Final = "copies a stream, or QUEUE.dead, to Parquet by day: the messages since the last run"
REPLAY: Final = "publishes an archive back into a queue, each message once"


class TransferFailed(RuntimeError):
    """Why a run failed, in one sentence."""


def add_archive(parser: ArgumentParser) -> None:
    parser.add_argument("queue")
    parser.add_argument("folder", help="path or URL that Spark can write to")
    parser.add_argument("--seal", action="store_true", help="encrypt bodies with the key of --seal-key-file")
    parser.add_argument("--skip-lost", action="store_true", help="continue after messages removed before this run")
    parser.add_argument("--max-offsets-per-batch", dest="maxOffsetsPerBatch", type=int)
    _add_gateway(parser)


def add_replay(parser: ArgumentParser) -> None:
    parser.add_argument("folder")
    parser.add_argument("queue")
    parser.add_argument("--since", help="the first day, such as 2026-11-23")
    parser.add_argument("--until", help="the last day")
    parser.add_argument("--where", help="SQL over the archive's columns")
    parser.add_argument("--messages-per-request", dest="messagesPerRequest", type=int)
    _add_gateway(parser)


def _add_gateway(parser: ArgumentParser) -> None:
    parser.add_argument("--url", help="gateway address; else PUSHQ_URL")
    parser.add_argument("--key-file", dest="tokenFile", help="file with the API key; else PUSHQ_KEY")
    parser.add_argument("--seal-key-file", dest="sealKeyFile", help="file with 64 hex digits; else PUSHQ_ARCHIVE_KEY")


def options_of(given: Namespace) -> dict[str, str]:
    """The options of `format("pushq")`."""
    options = {"queue": given.queue}
    for name in ("url", "tokenFile", "sealKeyFile", "maxOffsetsPerBatch", "messagesPerRequest"):
        if (value := getattr(given, name, None)) is not None:
            options[name] = str(value)
    if getattr(given, "seal", False):
        options["seal"] = "true"
    if getattr(given, "skip_lost", False):
        options["failOnDataLoss"] = "false"
    return options


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translates errors of Spark and the data source to `TransferFailed`."""
    try:
        yield
    except (PushqSourceError, PySparkException) as error:
        raise TransferFailed(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Our own error message, extracted from a worker's traceback."""
    lines = str(error).splitlines()
    ours = [line for line in lines if line.startswith("spark.source.errors.")]
    return ours[-1].partition(": ")[2] if ours else (lines or [type(error).__name__])[0]
