"""Queues and streams as a Spark data source: `register(session)`, then `format("pushq")`."""

from spark.source.pushq import PushqDataSource, register
from spark.source.rows import SCHEMA

__all__ = ["SCHEMA", "PushqDataSource", "register"]
