"""The code of an update, tried on this node before any worker takes it up: fetched, unpacked and imported.

It is imported in a process of its own, as at a launch; what it declares here must be what it declared where
the update was asked for. How that went is written below the module, where the conductor waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from stretto.artifact.describe import describe
from stretto.control import ModuleManifest
from stretto.errors import ModuleError, StrettoError
from stretto.network.loop import Loop
from stretto.specs.modules import ModuleSpec, Trial, Update
from stretto.supervisor.artifacts import ArtifactStore
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import encode

log = structlog.get_logger()

TRACEBACK_CHARACTERS_MAX = 20_000
"""Most characters of a traceback that are kept: a znode stays small."""


class CodeTrials:
    """Tries the code of updates on this node.

    All methods run on the loop's thread, except what says otherwise.
    """

    def __init__(
        self,
        loop: Loop,
        paths: Paths,
        *,
        node: str,
        store: ArtifactStore,
        write: Callable[[str, bytes], None],
    ) -> None:
        self._loop = loop
        self._paths = paths
        self._node = node
        self._store = store
        self._write = write
        #: Updates that were tried, or are being.
        self._begun: set[str] = set()
        self._pool = ThreadPoolExecutor(1, "trial")

    def begin(self, module: str, update: Update) -> None:
        """Try an update whose code is on this node, unless it was or is being tried."""
        if update.id not in self._begun:
            self._begun.add(update.id)
            self._pool.submit(self._try, module, update)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _try(self, module: str, update: Update) -> None:
        """Try an update and write the outcome; runs on the thread of the pool."""
        trial = try_code(self._store, update)
        log.info("update_tried", module=module, version=update.next.version, why=trial.why or "it loads")
        self._loop.call_soon(self._write, self._paths.trial(module, self._node), encode(trial))


def try_code(store: ArtifactStore, update: Update) -> Trial:
    """Import the code of an update and compare what it declares; may wait as long as an import may last."""
    wanted = update.next
    module, _, name = wanted.entry.partition(":")
    try:
        store.path(wanted.artifact)
        found = describe(store.file(wanted.artifact), module, name, label=wanted.entry)
    except ModuleError as error:
        return Trial(id=update.id, why=str(error), traceback=error.traceback[-TRACEBACK_CHARACTERS_MAX:])
    except (StrettoError, OSError) as error:
        return Trial(id=update.id, why=str(error))
    if not _agree(found, wanted):
        why = f"{wanted.entry} declares something else here than where the update was asked for"
        return Trial(id=update.id, why=f"{why}; let it declare the same everywhere")
    return Trial(id=update.id)


def _agree(found: ModuleManifest, wanted: ModuleSpec) -> bool:
    depots = [each.declared for each in found.depots] == [each.declared for each in wanted.depots]
    parts = ("entry", "pstates", "topologies", "queries")
    return depots and all(getattr(found, part) == getattr(wanted, part) for part in parts)
