"""The options of the data source, as a person writes them: ``.option("module", "WordCount")``.

Each is declared once, in :data:`OPTIONS`; docs/build/spark.md has the same table. A name that is not there is
refused with the nearest one, so a slip is never taken for a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

import msgspec
from pyspark import SparkFiles

from pyspark_stretto.columns.schema import Nested
from stretto.errors import UsageError
from stretto.network.keys import ClusterKey
from stretto.vocabulary.suggest import did_you_mean

OPTIONS: Final = {
    "bootstrap": "addresses of the cluster, as host:port,...",
    "key": "file of the cluster key, if there is one: on every machine of Spark, or brought by --files",
    "module": "the module to read",
    "pstate": "the PState to read",
    "depot": "the depot to read or to append to",
    "from": "who serves: follower (of the ISR) or leader",
    "at": "the name of a snapshot, instead of the present state",
    "path": "the folder of a snapshot, instead of a cluster: what load(PATH) gives",
    "nested": "rows: one for each inner key; map: one for each first key",
    "start": "first offset of the depot's records, for all tasks, or by task as JSON",
    "end": "one beyond the last offset, in the same way",
    "start.time": "records from this time on: ISO 8601 with a zone, or milliseconds since 1970",
    "end.time": "records before this time",
    "moment": "query: each query reads the present; load: all read what the first one planned",
    "hold.seconds": "queries read at the same moment for so long, before the next one reads the present",
    "split.bytes": "a task with more than this is read in several partitions",
    "filters": "spark, or pushed: only ranges of keys are read, and every query needs its own load()",
    "report": "file of the driver that is to tell what was read, at which offsets",
    "records.max.per.trigger": "most records that a micro-batch takes",
    "write.id": "a name of a write's own: one that is repeated under it adds nothing twice",
}
Use: TypeAlias = Literal["a PState", "a depot", "a snapshot", "a stream", "a write", "a stream's write"]

_REACH = frozenset({"bootstrap", "key", "module"})
_READ = _REACH | {"from", "at", "path", "moment", "hold.seconds", "split.bytes", "filters", "report"}
_OFFSETS = frozenset({"start", "end", "start.time", "end.time"})
#: Which options have an effect on which use. Any other is refused, since its effect would not come.
APPLIES: Final[Mapping[Use, frozenset[str]]] = {
    "a PState": _READ | {"pstate", "nested"},
    "a depot": _READ | {"depot"} | _OFFSETS,
    "a snapshot": (_READ | {"pstate", "depot", "nested"} | _OFFSETS) - {"from", "moment", "hold.seconds"},
    "a stream": _REACH | {"depot", "from", "start", "start.time", "records.max.per.trigger"},
    "a write": _REACH | {"depot", "write.id"},
    "a stream's write": _REACH | {"depot"},
}
#: Options that Spark itself adds to those of a stream.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
#: The option that Spark adds when a CREATE TABLE asks for the columns.
_TABLE_PROPERTY = "provider"
_NO_TABLES = (
    "Spark 4.3 passes no options to it when a table that was made by CREATE TABLE ... USING stretto is read. "
    "Say CREATE TEMPORARY VIEW name USING stretto OPTIONS (bootstrap 'host:port', module 'WordCount', pstate "
    "'counts'), or spark.read.format(\"stretto\").option(...).load()"
)
SPLIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one read or write, parsed; a name that is not given has its default."""

    bootstrap: tuple[str, ...] = ()
    key: str | None = None
    module: str | None = None
    pstate: str | None = None
    depot: str | None = None
    source: Literal["follower", "leader"] = "follower"
    at: str | None = None
    path: str | None = None
    nested: Nested = "rows"
    start: dict[int, int] | int | None = None
    end: dict[int, int] | int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    moment: Literal["query", "load"] = "query"
    hold_ms: int = 0
    split_bytes: int = SPLIT_BYTES
    filters: Literal["spark", "pushed"] = "spark"
    report: str | None = None
    records_max: int | None = None
    write_id: str | None = None
    given: frozenset[str] = frozenset()
    """Names of the options that were given."""

    @property
    def object(self) -> str:
        """The PState or depot as error messages name it."""
        return f"PState {self.pstate}" if self.pstate is not None else f"depot {self.depot}"

    @property
    def replans(self) -> bool:
        """Whether each query reads the present; with a report, which describes one plan, it does not."""
        is_live = self.path is None and self.at is None
        return is_live and self.moment == "query" and self.report is None

    def cluster_key(self) -> ClusterKey | None:
        """Read the cluster key from its file, which may be one that Spark has brought along (``--files``)."""
        if self.key is None:
            return None
        path = Path(self.key)
        brought = SparkFiles._root_directory  # noqa: SLF001
        if not path.is_absolute() and not path.exists() and brought is not None:
            path = Path(SparkFiles.get(self.key))
        # What a job brings has the mode that Spark gives it: its folder is for the administrator to close.
        is_brought = brought is not None and path.resolve().parent == Path(brought).resolve()
        return ClusterKey.load(path, private=not is_brought)


def parse(given: Mapping[str, str]) -> Options:
    """Parse the options of a ``load()`` or a write. Raises UsageError for an unknown name or a bad value."""
    options = {name.lower(): value for name, value in given.items()}
    if _TABLE_PROPERTY in options:
        raise UsageError(f"there are no tables of the stretto data source: {_NO_TABLES}")
    for name in options:
        if name not in OPTIONS and name not in _OF_SPARK:
            raise UsageError(f"the stretto data source has no option {name}; {did_you_mean(name, OPTIONS)}")
    return Options(
        bootstrap=tuple(each.strip() for each in options.get("bootstrap", "").split(",") if each.strip()),
        key=options.get("key"),
        module=options.get("module"),
        pstate=options.get("pstate"),
        depot=options.get("depot"),
        source=cast(Literal["follower", "leader"], _choice(options, "from", "follower", "leader")),
        at=options.get("at"),
        path=options.get("path"),
        nested=cast(Nested, _choice(options, "nested", "rows", "map")),
        start=_offsets(options, "start"),
        end=_offsets(options, "end"),
        start_ms=_time(options, "start.time"),
        end_ms=_time(options, "end.time"),
        moment=cast(Literal["query", "load"], _choice(options, "moment", "query", "load")),
        hold_ms=(_positive(options, "hold.seconds") or 0) * 1_000,
        split_bytes=_positive(options, "split.bytes") or SPLIT_BYTES,
        filters=cast(Literal["spark", "pushed"], _choice(options, "filters", "spark", "pushed")),
        report=options.get("report"),
        records_max=_positive(options, "records.max.per.trigger"),
        write_id=options.get("write.id"),
        given=frozenset(options) - _OF_SPARK,
    )


def check_batch(options: Options) -> None:
    """Raise UsageError if an option is given that has no effect on a batch read of this kind."""
    check_applies(options, "a PState" if options.pstate is not None else "a depot")
    if options.path is not None or options.at is not None:
        check_applies(options, "a snapshot")


def check_applies(options: Options, use: Use) -> None:
    """Raise UsageError if an option is given that has no effect on this use."""
    for name in sorted(options.given - APPLIES[use]):
        fitting = ", ".join(sorted(APPLIES[use]))
        raise UsageError(f"option {name} has no effect on {use}; take it away: {fitting} have one")


def check_reads(options: Options) -> None:
    """Raise UsageError unless the options say clearly what to read, and from where."""
    if not options.given:
        raise UsageError(f"the stretto data source was given no options; {_NO_TABLES}")
    if options.path is None and not options.bootstrap:
        raise UsageError(
            'say where the cluster is, as .option("bootstrap", "host:port"), or load(PATH) a snapshot'
        )
    if options.path is not None and (options.bootstrap or options.at):
        raise UsageError(
            "a snapshot that is given by its folder is read without a cluster; take bootstrap and at away"
        )
    if options.path is None and options.module is None:
        raise UsageError('say which module to read, as .option("module", "WordCount")')
    if (options.pstate is None) == (options.depot is None):
        raise UsageError('say what to read: .option("pstate", NAME) or .option("depot", NAME)')
    of_depots = (options.start, options.end, options.start_ms, options.end_ms)
    if options.pstate is not None and any(each is not None for each in of_depots):
        raise UsageError(
            "start and end choose records of a depot; a PState has none, filter its keys instead"
        )
    if options.report is not None and options.moment == "query" and "moment" in options.given:
        raise UsageError("a report tells of one plan; take it away, or say moment=load")
    for side in ("start", "end"):
        if getattr(options, side) is not None and getattr(options, f"{side}_ms") is not None:
            raise UsageError(f"{side} and {side}.time exclude each other; give one of them")


def check_tasks(options: Options, module: str, tasks: int) -> None:
    """Raise UsageError if ``start`` or ``end`` names a task that the module does not have."""
    for side in ("start", "end"):
        given = getattr(options, side)
        for task in given if isinstance(given, dict) else ():
            if not 0 <= task < tasks:
                raise UsageError(f"option {side} names task {task}, and {module} has tasks 0 to {tasks - 1}")


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"option {name} is {' or '.join(choices)}, not {value!r}")
    return value


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise UsageError(f"option {name} is a whole number above 0, not {value!r}")
    return int(value)


def _offsets(options: Mapping[str, str], name: str) -> dict[int, int] | int | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        found = msgspec.json.decode(value, type=dict[int, int] | int)
    except msgspec.MsgspecError:
        raise UsageError(
            f'option {name} is an offset, or offsets by task such as {{"0": 17, "1": 4}}, not {value!r}'
        ) from None
    offsets = [found] if isinstance(found, int) else list(found.values())
    if any(offset < 0 for offset in offsets):
        raise UsageError(f"option {name} is {value}, and offsets begin at 0")
    return found


def _time(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if value.isdecimal():
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise UsageError(
            f"option {name} is a time such as 2026-01-31T12:00:00+00:00, or milliseconds since 1970, "
            f"not {value!r}"
        )
    return int(moment.astimezone(UTC).timestamp() * 1_000)
