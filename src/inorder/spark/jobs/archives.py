"""An archive as rows: what `archive` wrote, each message once, also while files are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.errors import ConfigError
from inorder.spark.jobs.files import Folder
from inorder.spark.jobs.layout import sift
from inorder.spark.schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_archive(spark: SparkSession, path: str, topic: str | None = None) -> DataFrame:
    """Return the messages of an archive, with the columns of `format("inorder")`.

    Rows of one file are in order; sort by `queue` and `offset` where that matters.
    """
    folder = Folder(path)
    files, _ = sift(folder.files(None if topic is None else [topic]))
    if not files:
        of = "" if topic is None else f" of topic {topic}"
        raise ConfigError(f"{path} holds no archive{of}; `inorder pipeline archive` makes one")
    return spark.read.schema(spark_schema()).parquet(*(folder.url(file) for file in files))
