"""Options in the metastore: a small JSON znode for each level, a map from name to value.

A change is one transaction: the level's znode, compared and set on its version, and the znode above all
levels, written so that who watches it hears of every change by one watch.

A worker follows the options of the cluster and of its module. Its sessions begin with a reading of them, seen
to be no older than the session: only then is it registered. So no replica leads, or counts who is in sync, by
a min-ISR that was replaced while its worker was away. Then each change is one more reading, however many come
at once; what is found is told if it is different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
import structlog
from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import WatchedEvent

from stretto.errors import OptionError
from stretto.options import CLUSTER, OPTIONS, Level, OptionSet, Scope, option_named, parse
from stretto.vocabulary.decoding import MALFORMED
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.sessions.session import Done, MetastoreUnavailable, Send
from stretto.zk.watches.znode import Watcher
from stretto.zk.znodes.paths import Paths, named
from stretto.zk.znodes.records import ZnodeDamaged

log = structlog.get_logger()

_PARTS = (Scope.DEPOT, Scope.TOPOLOGY, Scope.PSTATE)


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any]) if data else {}
    except MALFORMED as error:
        raise ZnodeDamaged(path, str(error)) from None


def _decode_checked(data: bytes, path: str) -> dict[str, Any]:
    """Decode a level, and check its values; names that are not known here stay as they are."""
    values = _decode(data, path)
    try:
        return {
            name: OPTIONS[name].checked(value) if name in OPTIONS else value for name, value in values.items()
        }
    except OptionError as error:
        raise ZnodeDamaged(path, str(error)) from None


# For callers that may wait: the conductor, tools and tests.


def set_option(client: KazooClient, paths: Paths, level: Level, name: str, value: object) -> None:
    """Set an option at a level. Raises OptionError for a name, a value or a level that cannot be."""
    set_options(client, paths, level, {name: value})


def set_options(client: KazooClient, paths: Paths, level: Level, wanted: Mapping[str, object]) -> None:
    """Set several options of one level at once."""
    values = {name: parse(name, value, level) for name, value in wanted.items()}
    _change(client, paths, level, lambda known: known | values)


def unset_option(client: KazooClient, paths: Paths, level: Level, name: str) -> bool:
    """Unset an option at a level; False if it was not set there."""
    was_set = False

    def without(known: dict[str, Any]) -> dict[str, Any]:
        nonlocal was_set
        was_set = name in known
        if not was_set:
            option_named(name)
        return {each: value for each, value in known.items() if each != name}

    _change(client, paths, level, without)
    return was_set


def begin_module(
    change: TransactionRequest,
    client: KazooClient,
    paths: Paths,
    module: str,
    wanted: Mapping[Level, Mapping[str, object]],
) -> None:
    """Add the options of a module to the transaction that launches it.

    It and its parts have these, and none that a namesake left. With the launch or not at all: a launch that
    is refused must not change what is set for the module that has the name.
    """
    found = {
        level: msgspec.json.encode(
            {name: parse(name, value, level) for name, value in values.items()}, order="sorted"
        )
        for level, values in wanted.items()
    }
    top = Level.of(module)
    client.ensure_path(paths.options_of_modules)
    for left in reversed(_tree(client, paths.options_of(top))):
        change.delete(left)
    change.create(paths.options_of(top), found.pop(top, b"{}"))
    for scope in sorted({level.scope for level in found}):
        change.create(paths.options_of_parts(module, scope))
    for level, values in found.items():
        change.create(paths.options_of(level), values)
    change.set_data(paths.options, b"", -1)


def _tree(client: KazooClient, path: str) -> list[str]:
    """A znode and all below it, from the top; nothing if it is not there."""
    if client.exists(path) is None:
        return []
    below = [_tree(client, f"{path}/{name}") for name in _children(client, path)]
    return [path, *(each for found in below for each in found)]


def forget_module(client: KazooClient, paths: Paths, module: str) -> None:
    """Delete what was set for a module and its parts."""
    forget_level(client, paths, Level.of(module))


def forget_level(client: KazooClient, paths: Paths, level: Level) -> None:
    """Delete what was set for a depot, topology or PState that is gone."""
    try:
        client.delete(paths.options_of(level), recursive=True)
        client.set(paths.options, b"")
    except NoNodeError:
        return


def read_all(client: KazooClient, paths: Paths) -> OptionSet:
    """All options that are set, at any level. Raises ZnodeDamaged."""
    levels = [CLUSTER]
    for module in _children(client, paths.options_of_modules):
        levels.append(Level.of(module))
        for scope in _PARTS:
            parts = _children(client, paths.options_of_parts(module, scope))
            levels += [Level(scope, module, part) for part in parts]
    found = {}
    for level in levels:
        path = paths.options_of(level)
        try:
            found[level] = _decode_checked(client.get(path)[0], path)
        except NoNodeError:
            continue
    return _option_set(found)


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(named(client.get_children(path)))
    except NoNodeError:
        return []


def _option_set(levels: Mapping[Level, dict[str, Any]]) -> OptionSet:
    return OptionSet({level: values for level, values in levels.items() if values})


def _change(
    client: KazooClient, paths: Paths, level: Level, edit: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    path = paths.options_of(level)
    try:
        while True:
            client.ensure_path(path)
            try:
                data, stat = client.get(path)
            except NoNodeError:
                continue
            known = _decode(data, path)
            edited = edit(dict(known))
            if edited == known or _commit(client, paths, path, edited, stat.version):
                return
    except LOST_ANSWER:
        raise MetastoreUnavailable(
            f"ZooKeeper did not answer, so the options of the {level} may or may not have changed; try again"
        ) from None


def _commit(client: KazooClient, paths: Paths, path: str, values: dict[str, Any], version: int) -> bool:
    """Write the values of a level; False if another process was faster."""
    transaction = client.transaction()
    transaction.set_data(path, msgspec.json.encode(values, order="sorted"), version)
    transaction.set_data(paths.options, b"", -1)
    failures = [each for each in transaction.commit() if isinstance(each, Exception)]
    for failure in failures:
        if isinstance(failure, BadVersionError | NoNodeError):
            return False
        if not isinstance(failure, RolledBackError | RuntimeInconsistency):
            raise failure
    return not failures


# For workers.


class OptionsAsker(Watcher, Protocol):
    """What a watch of options needs of its worker's metastore."""

    paths: Paths

    def ask_early(self, send: Send, done: Done) -> None:
        """Send a request, also before there is a registration."""

    def ask_early_synced(self, send: Send, done: Done) -> None: ...


class WatchedOptions:
    """The options of the cluster and of one module, as a worker follows them, under the asker's lock."""

    def __init__(self, asker: OptionsAsker, module: str, told: Callable[[OptionSet], None]) -> None:
        self._asker = asker
        self._module = module
        self._tell = told
        #: The options reported in this session; None before the first.
        self._told: OptionSet | None = None
        self._reading: _Reading | None = None
        self._changed_meanwhile = False
        self._problem = ""
        self._watch = asker.watch(lambda _: self._read())

    @property
    def is_told(self) -> bool:
        """Whether options were reported in this session."""
        return self._told is not None

    def restart(self, *, new_session: bool) -> None:
        """Read and watch again on a new connection: what was asked and watched before is void."""
        if new_session:
            self._told = None
        self._reading = None
        self._read()

    def _read(self) -> None:
        if self._reading is not None:
            self._changed_meanwhile = True
            return
        self._changed_meanwhile = False
        self._reading = _Reading(self._asker, self._module, self._watch, self._was_read)
        self._reading.start(synced=self._told is None)

    def _was_read(self, reading: _Reading, found: OptionSet | None, error: Exception | None) -> None:
        if reading is not self._reading:
            return
        self._reading = None
        if found is not None:
            self._problem = ""
            if found != self._told:
                self._told = found
                self._tell(found)
            if self._changed_meanwhile:
                self._read()
        elif not isinstance(error, LOST_ANSWER):
            self._complain(error)
            self._asker.again_later(self._read)

    def _complain(self, error: Exception | None) -> None:
        problem = str(error) if isinstance(error, ZnodeDamaged) else repr(error)
        if problem != self._problem:
            self._problem = problem
            advice = "until it can be read, what was known before holds, and no session begins"
            log.error("options_not_read", problem=problem, advice=advice)


class _Reading:
    """One reading of all levels; ``done`` is called once, with what was found or the first error."""

    def __init__(
        self,
        asker: OptionsAsker,
        module: str,
        watch: Callable[[WatchedEvent], None],
        done: Callable[[_Reading, OptionSet | None, Exception | None], None],
    ) -> None:
        self._asker = asker
        self._paths = asker.paths
        self._module = module
        self._watch = watch
        self._done = done
        self._found: dict[Level, dict[str, Any]] = {}
        self._steps = 0
        self._error: Exception | None = None

    def start(self, *, synced: bool) -> None:
        """Begin with the watch, also on what is not there yet: it fires with whatever changes from now on."""
        ask = self._asker.ask_early_synced if synced else self._asker.ask_early
        path = self._paths.options
        self._step(lambda client: client.exists_async(path, watch=self._watch), self._watched, ask)

    def _watched(self, stat: Any) -> None:
        if stat is None:
            return
        self._levels([CLUSTER, Level.of(self._module)])
        for scope in _PARTS:
            self._list(scope)

    def _list(self, scope: Scope) -> None:
        path = self._paths.options_of_parts(self._module, scope)

        def listed(names: list[str]) -> None:
            self._levels(Level(scope, self._module, name) for name in named(names))

        self._step(lambda client: client.get_children_async(path), listed)

    def _levels(self, levels: Iterable[Level]) -> None:
        for level in levels:
            self._level(level, self._paths.options_of(level))

    def _level(self, level: Level, path: str) -> None:
        def read(value: Any) -> None:
            self._found[level] = _decode_checked(value[0], path)

        self._step(lambda client: client.get_async(path), read)

    def _step(
        self, send: Send, then: Callable[[Any], None], ask: Callable[[Send, Done], None] | None = None
    ) -> None:
        self._steps += 1

        def answered(value: Any, error: Exception | None) -> None:
            if error is None:
                try:
                    then(value)
                except ZnodeDamaged as damage:
                    self._error = self._error or damage
            elif not isinstance(error, NoNodeError):
                self._error = self._error or error
            self._steps -= 1
            if self._steps == 0:
                found = _option_set(self._found) if self._error is None else None
                self._done(self, found, self._error)

        (ask or self._asker.ask_early)(send, answered)
