"""`format("pushq")`: creates the reader or writer of a query."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark.session import ship_code
from spark.source.gateway import Gateway
from spark.source.options import parsed
from spark.source.rows import SCHEMA
from spark.source.stream import KINDS, RangeReader, StreamReader
from spark.source.work import WorkReader
from spark.source.writer import BatchWriter, StreamWriter, checked_target


class PushqDataSource(DataSource):
    """Options: `docs/how-to/spark.md`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parsed(dict(options))

    @classmethod
    def name(cls) -> str:
        return "pushq"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return RangeReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._options
        with Gateway(options.url, options.token, options.retry_s) as gateway:
            layout = gateway.layout(options.queue)
        return StreamReader(options) if layout.kind in KINDS else WorkReader(options, layout.uid)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        checked_target(self._options, overwrite)
        return BatchWriter(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        checked_target(self._options, overwrite)
        return StreamWriter(self._options, schema)


def register(session: SparkSession) -> None:
    """Registers `format("pushq")` with a session, and sends its code to the executors."""
    ship_code(session)
    session.dataSource.register(PushqDataSource)
