"""Usage files as DataFrames: rows that can be counted, and those that cannot, with the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

from spark.transforms.quality import CORRUPT, NO_ROW, REASON, reason, schema_of, with_defaults
from spark.usage_schema import SCHEMAS

_NAME: Final = re.compile(r"(ledger|minutes|audit)-[^/]+\.ndjson\.gz")
_OPENED_LIKE_BYTES: Final = 256 * 1024
"""The cost of opening a file, in bytes, so that many small files share a task."""


LITTLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Compressed. Reading less than this takes Spark less time than compiling plans and optimizing them at run time."""


class BadFolder(ValueError):
    """A folder lacks the expected files."""


def usage_files(folder: Path, kind: str) -> list[Path]:
    """The finished files of a kind, sorted by name. Raises `BadFolder`."""
    if not folder.is_dir():
        raise BadFolder(f"--from {folder}: there is no such folder; name one that `pushq usage collect` filled")
    return sorted(path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)) and match[1] == kind)


def check_whole(files: Iterable[Path]) -> None:
    """Raises `BadFolder` if a file is empty: Spark would treat it as a file without rows, and record it as read."""
    for path in files:
        if not path.stat().st_size:
            raise BadFolder(f"{path}: the file is empty; remove it and collect it again from its server")


def is_little(folders: Iterable[Path]) -> bool:
    """Whether all files below the folders are small in total. Files that vanish meanwhile do not count."""
    left = LITTLE_BYTES_MAX
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):
                    left -= (Path(parent) / name).stat().st_size
                if left < 0:
                    return False
    return True


class Rows:
    """Rows of files of one kind. `good` may be read once; the number of bad rows is known after an action on it."""

    def __init__(self, session: SparkSession, files: Sequence[Path], kind: str, columns: list[str] | None = None):
        self._session = session
        self._kind = kind
        self._paths = [str(path) for path in files]
        self._columns = columns or [field.name for field in SCHEMAS[kind].fields]
        self._seen = Observation()
        session.conf.set("spark.sql.files.openCostInBytes", str(_OPENED_LIKE_BYTES))

    def good(self, *, times_as_text: bool = False, with_files: bool = False) -> DataFrame:
        """The countable rows; `with_files`: each with the name of its `file`."""
        schema = schema_of(self._kind, self._columns)
        if times_as_text:
            schema = _with_text(schema)
        rows = self._session.read.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).json(self._paths)
        if with_files:
            rows = rows.select("*", F.col("_metadata.file_name").alias("file"))
        checked = with_defaults(rows, self._kind) if "version" in self._columns else rows
        checked = checked.withColumn(REASON, reason(self._kind, self._columns))
        checked = checked.observe(self._seen, F.count(REASON).alias("bad"), F.count(F.lit(1)).alias("rows"))
        return checked.where(F.col(REASON).isNull()).drop(CORRUPT, REASON)

    def counted(self) -> tuple[int, int]:
        """(rows, bad rows), once `good` has been read."""
        seen = self._seen.get
        return int(seen["rows"]), int(seen["bad"])

    def bad(self) -> DataFrame:
        """`kind`, `file`, `reason` and `line` of each bad row, as many as `good` counted. Reads the files again, which
        is acceptable as bad rows are rare.

        Lines that are not rows are found by the same reader as in `good`. For a bad row that is readable, its line is
        found by reading the text.
        """
        schema = schema_of(self._kind, self._columns)
        checked = self._session.read.schema(schema).option("columnNameOfCorruptRecord", CORRUPT).json(self._paths)
        broken = self._judged(checked.withColumn("file", F.input_file_name()))
        lines = self._session.read.text(self._paths).where(F.is_valid_utf8("value") & (F.trim("value") != ""))
        lines = lines.select(F.input_file_name().alias("file"), "value")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        is_list = F.ltrim("value").startswith("[")
        of_lists = F.explode(F.from_json("value", ArrayType(schema)))
        read = lines.where(~is_list).select("file", "value", F.from_json("value", schema, options).alias("row"))
        read = read.unionByName(lines.where(is_list).select("file", "value", of_lists.alias("row")))
        odd = self._judged(read.select("file", "value", "row.*"))
        named = F.lit(self._kind).alias("kind"), "file", REASON
        of_broken = broken.where(F.col(REASON) == NO_ROW).select(*named, F.col(CORRUPT).alias("line"))
        return of_broken.unionByName(odd.where(F.col(REASON) != NO_ROW).select(*named, F.col("value").alias("line")))

    def _judged(self, rows: DataFrame) -> DataFrame:
        checked = with_defaults(rows, self._kind) if "version" in self._columns else rows
        return checked.withColumn(REASON, reason(self._kind, self._columns))


def _with_text(schema: StructType) -> StructType:
    """The schema with times as text, as in the files: lexical order is order in time, and nothing is parsed."""
    types = [StringType() if isinstance(field.dataType, TimestampType) else field.dataType for field in schema.fields]
    return StructType([StructField(field.name, type_) for field, type_ in zip(schema.fields, types, strict=True)])
