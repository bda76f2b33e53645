"""What went wrong, without the layers of Spark around it.

An error of ours in a task or in the source reaches the driver as text inside an error of Java
inside an error of Python. Users are told the sentence that was written for them.
"""

from __future__ import annotations

import re
from typing import Final

from inorder import errors

_OURS: Final = re.compile(r"^(?:\w+Error: )?inorder\.[\w.]*?\b([A-Z]\w+): (.+)$", re.MULTILINE)
_SENTENCE_MAX: Final = 500


def as_ours(error: BaseException) -> errors.InorderError:
    """Return the error of ours that is inside one of Spark's; else a short one that names it."""
    if isinstance(error, errors.InorderError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, sentence = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.ConfigError | errors.UsageError):
            return kind(sentence.strip())
        return errors.InorderError(sentence.strip())
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return errors.InorderError(f"Spark: {first[:_SENTENCE_MAX] or type(error).__name__}")
