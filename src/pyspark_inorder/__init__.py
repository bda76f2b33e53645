"""Found by Spark by its name: `spark.read.format("inorder")` works where inorder is installed."""

from inorder.spark.source.service import InorderSource as DefaultSource

__all__ = ["DefaultSource"]
