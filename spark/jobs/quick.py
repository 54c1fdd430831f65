"""Sums a large ledger in tasks, file by file, and finds the files in which Spark must check each row.

Tasks receive file names and return sums. A file with anything unusual in it, even in its last row, yields no sums.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark import columns
from spark.session import ship_code

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a file in memory at a time, in addition to the start of an incomplete line, which is shorter."""
TASK_BYTES: Final = 4 * 1024 * 1024
"""Compressed bytes per task: one or two seconds of work, so that no core waits long for another."""
_MARKS: Final = [StructField("file", StringType()), StructField("rows", LongType())]
"""The last row of each file has only these columns: the number of its rows."""
_ODD: Final = -1
QUICK_BYTES_MIN: Final = 64 * 1024 * 1024
"""Compressed. Spark reads less than this directly, because starting these tasks takes time, too."""


class Sums(NamedTuple):
    """The sums of files. `frame` is materialized, and names the `file` of each row."""

    frame: DataFrame
    rows: int
    odd: list[Path]
    """Files that `frame` does not cover."""


def is_much(files: Sequence[Path]) -> bool:
    return sum(path.stat().st_size for path in files) >= QUICK_BYTES_MIN


def sums_of(session: SparkSession, files: Sequence[Path]) -> Sums:
    """Reads ledger files, each once."""
    ship_code(session)
    session.dataSource.register(SumsSource)
    read = session.read.format(SumsSource.name()).option("files", json.dumps([str(path.absolute()) for path in files]))
    frame = read.load().localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK)
    ends = frame.where(F.col("rows").isNotNull()).select("file", "rows").collect()
    rows = {row["file"]: int(row["rows"]) for row in ends}
    kept = frame.where(F.col("rows").isNull()).drop("rows")
    return Sums(kept, sum(max(0, one) for one in rows.values()), [path for path in files if rows[path.name] == _ODD])


class SumsSource(DataSource):
    """The sums of files as a Spark data source."""

    @classmethod
    def name(cls) -> str:
        return "pushq_ledger_sums"

    def schema(self) -> StructType:
        return StructType([*_MARKS, *columns.SUMS.fields])

    def reader(self, schema: StructType) -> DataSourceReader:
        return SumsReader(json.loads(self.options["files"]), schema)


class SumsReader(DataSourceReader):
    def __init__(self, files: list[str], schema: StructType) -> None:
        self._files = files
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Small files share a task; a large one has its own."""
        shares: list[list[str]] = []
        left = 0
        for file in self._files:
            size = Path(file).stat().st_size
            if size > left:
                shares.append([])
                left = TASK_BYTES
            shares[-1].append(file)
            left -= size
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for file in partition.value:
            yield from self._sums(Path(file))

    def _sums(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yields all sums of a file, or none."""
        found: list[pa.RecordBatch] = []
        rows = 0
        try:
            for lines in pieces(path):
                found.append(columns.sums_of(lines))
                rows += lines.count(b"\n")
        except columns.Odd:
            found, rows = [], _ODD
        types = to_arrow_schema(self._schema, timezone="UTC")
        for batch in found:
            marks = [pa.array([path.name] * len(batch)), pa.nulls(len(batch), pa.int64())]
            yield pa.RecordBatch.from_arrays([*marks, *batch.columns], schema=types)
        ends = [pa.array([path.name]), pa.array([rows]), *[pa.nulls(1, field.type) for field in types][2:]]
        yield pa.RecordBatch.from_arrays(ends, schema=types)


def pieces(path: Path) -> Iterator[bytes]:
    """Yields a file's lines in large pieces. Raises `columns.Odd` if the file or its last line is truncated."""
    rest = b""
    try:
        with gzip.open(path) as file:
            while piece := file.read(PIECE_BYTES):
                end = piece.rfind(b"\n") + 1
                if not end and len(piece) == PIECE_BYTES:
                    raise columns.Odd("a line is too long")
                if end:
                    yield rest + piece[:end]
                    rest = b""
                rest += piece[end:]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise columns.Odd(str(error)) from None
    if rest:
        raise columns.Odd("the last line is incomplete")
