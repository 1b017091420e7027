"""One sentence in the driver, wherever it was said.

Spark runs a data source in Python processes of its own, and shows what is raised there with the traceback of
that process. A :class:`~stretto.errors.StrettoError` is a sentence for a person, so the traceback is left
out; Spark asks the environment about that, when it writes the error down, and the process ends right after.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from stretto.errors import StrettoError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_SENTENCE = re.compile(r"(?:^|\s)(?:stretto|pyspark_stretto)(?:\.\w+)+: (.+)")


@contextmanager
def plainly() -> Iterator[None]:
    """Make Spark show an error of stretto from this block as its sentence alone, without a traceback."""
    try:
        yield
    except StrettoError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence of stretto inside an error of Spark; None if the error is about something else."""
    if isinstance(error, StrettoError):
        return str(error)
    found = _SENTENCE.search(str(error))
    return found.group(1).strip() if found is not None else None
