"""The columns of `format("inorder")`, in Spark's words and in Arrow's: both must match exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from inorder.errors import ConfigError

FIELDS: Final[tuple[tuple[str, str, pa.DataType], ...]] = (
    ("topic", "string", pa.string()),
    ("broker", "string", pa.string()),
    ("queue", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    ("key", "string", pa.string()),
    ("tag", "string", pa.string()),
    ("keys", "string", pa.string()),
    ("body", "binary", pa.binary()),
    ("properties", "map<string,string>", pa.map_(pa.string(), pa.string())),
    ("born_at", "timestamp", pa.timestamp("us", tz="UTC")),
    ("stored_at", "timestamp", pa.timestamp("us", tz="UTC")),
    ("message_id", "string", pa.string()),
    ("redeliveries", "int", pa.int32()),
)
COLUMNS: Final = tuple(name for name, _, _ in FIELDS)


def chosen(text: str | None) -> tuple[str, ...]:
    """Return the columns that an option names, in the order of the schema; all if it is absent."""
    if text is None:
        return COLUMNS
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in COLUMNS:
            raise ConfigError(
                f"columns: there is no column {name!r}; there are {', '.join(COLUMNS)}"
            )
    if not wanted:
        raise ConfigError(f"columns: name at least one of {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in wanted)


def spark_schema(columns: Sequence[str] = COLUMNS) -> str:
    """Return the schema as Spark reads it."""
    return ", ".join(f"{name} {kind}" for name, kind, _ in FIELDS if name in columns)


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of the batches."""
    return pa.schema([(name, kind) for name, _, kind in FIELDS if name in columns])
