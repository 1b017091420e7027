"""One connection for all that a Python process of Spark does, one thing after the other.

Spark keeps its Python processes and gives them task after task; a connection for each would cost more than
most of them read or write.
"""

from __future__ import annotations

from pyspark_stretto.options import Options
from stretto.client import Client, connect
from stretto.errors import RetriableError, UsageError

CONNECT_SECONDS = 10.0

_current: tuple[tuple[tuple[str, ...], str | None], Client] | None = None


def client_of(options: Options) -> Client:
    """Return this process's client for the cluster that the options name; the caller must not close it."""
    global _current  # noqa: PLW0603 - one for the process
    if not options.bootstrap:
        raise UsageError('say where the cluster is, as .option("bootstrap", "host:port")')
    wanted = (options.bootstrap, options.key)
    if _current is not None and _current[0] == wanted:
        return _current[1]
    if _current is not None:
        _current[1].close()
        _current = None
    try:
        client = connect(options.bootstrap, key=options.cluster_key(), timeout=CONNECT_SECONDS)
    except RetriableError as error:
        tried = ", ".join(options.bootstrap)
        raise RetriableError(f"no worker of the cluster answered at {tried}: {error}") from None
    _current = (wanted, client)
    return client
