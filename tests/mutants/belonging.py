"""Which files are edited, and which tests belong to each.

A test belongs to the modules that it imports, itself, through what it shares with other tests, or by way of
other modules, as a driver is tested through its facade. The nearest are asked first, and of those as near the
ones of the module's own room, then the ones that import least: they are about this module. What is farther
away has to be in the module's own room.
What only real processes do has tests in :data:`ALSO`, which are asked about what all others let pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

#: What is edited: drivers, not the pure machines, which the simulator and its own mutants hold.
TARGETS = (
    "worker/**/*.py",
    "supervisor/*.py",
    "state/*.py",
    "replog/*.py",
    "catchup/*.py",
    "catchup/machines/*/*.py",
    "conductor/*.py",
    "zk/**/*.py",
    "stretto/network/*.py",
    "stretto/client/**/*.py",
    "stretto/snapshot/*.py",
    "stretto/export/*.py",
    "pyspark_stretto/**/*.py",
)
#: Of those: what only people and charts see, and what begins a process and hands over to the rest.
NOT_TARGETS = (
    "*/__init__.py",
    "*/__main__.py",
    "worker/telemetry.py",
    # Each clause has its mutant in the simulator.
    "worker/microbatch/machines/guards.py",
    "worker/topology/machine/guards.py",
)

#: Where tests are looked for that reach a module by way of another.
ROOMS = {
    "worker/": ("tests/unit/worker/",),
    "supervisor/": ("tests/unit/supervisor/",),
    "state/": ("tests/unit/state/", "tests/unit/worker/"),
    "replog/": ("tests/unit/replog/", "tests/contracts/"),
    "catchup/": ("tests/unit/catchup/", "tests/unit/worker/"),
    "conductor/": ("tests/unit/conductor/",),
    "zk/": ("tests/unit/zk/",),
    "stretto/network/": ("tests/unit/network/", "tests/unit/client/"),
    "stretto/client/": ("tests/unit/client/",),
    "stretto/snapshot/": ("tests/unit/snapshot/", "tests/unit/worker/"),
    "stretto/export/": ("tests/unit/export/",),
    "pyspark_stretto/": ("tests/unit/pyspark_stretto/",),
}

#: Tests with real processes and a real ZooKeeper, for each file those of the first pattern that it matches.
ALSO = {
    "zk/server/embedded.py": ("integration/zk/test_embedded.py", "integration/zk/test_ensemble.py"),
    "zk/server/ensemble.py": ("integration/zk/test_ensemble.py",),
    "zk/server/guardian.py": ("integration/zk/test_embedded.py",),
    "zk/watches/options.py": ("integration/zk/test_options.py",),
    "zk/watches/tree.py": ("integration/zk/test_mirror.py",),
    "zk/watches/daemon_session.py": ("integration/zk/test_mirror.py", "integration/zk/test_groups.py"),
    "zk/*.py": (
        "contracts/test_metastore_contract.py",
        "integration/zk/test_groups.py",
        "integration/zk/test_sessions.py",
        "integration/zk/test_followed.py",
        "integration/zk/test_mirror.py",
    ),
    "conductor/snapshots.py": ("integration/conductor/test_registers.py",),
    "conductor/operations.py": ("integration/conductor/test_registers.py",),
    "conductor/*.py": (
        "integration/conductor/test_conductor.py",
        "integration/conductor/test_updates.py",
        "integration/conductor/test_scaling.py",
        "integration/conductor/test_regrouping.py",
        "integration/cli/test_life.py",
    ),
    "catchup/*.py": ("integration/catchup/test_far_horizon.py",),
    "replog/inspect.py": ("integration/cli/test_inspecting.py",),
    "replog/*.py": ("integration/worker/test_crashes.py", "integration/worker/test_disks.py"),
    "worker/microbatch/*.py": ("integration/worker/test_microbatch.py",),
    "worker/scans/*.py": ("integration/worker/test_pins.py",),
    "worker/topology/*.py": ("integration/worker/test_streams.py", "integration/worker/test_queries.py"),
    "worker/executors/*.py": ("integration/worker/test_streams.py", "integration/worker/test_queries.py"),
    "worker/sna*.py": ("integration/snapshot/test_faults.py",),
    "state/held.py": ("integration/snapshot/test_faults.py",),
    "stretto/snapshot/*.py": ("integration/snapshot/test_faults.py", "integration/cli/test_snapshots.py"),
    **dict.fromkeys(
        (f"supervisor/{name}.py" for name in ("artifacts", "code", "trials")),
        ("integration/supervisor/test_code.py", "integration/cli/test_deploy.py"),
    ),
    "supervisor/*.py": ("integration/supervisor/test_workers.py",),
    "worker/start.py": ("integration/supervisor/test_workers.py",),
    **dict.fromkeys(
        ("state/removal.py", "worker/hosting/retention.py", "worker/replica/shortening.py"),
        ("integration/catchup/test_retention.py",),
    ),
    **dict.fromkeys(
        ("worker/hosting/regrouping.py", "worker/replica/takeover.py", "state/task_seed.py"),
        ("integration/conductor/test_regrouping.py", "integration/cli/test_threads.py"),
    ),
    **dict.fromkeys(
        ("worker/hosting/*.py", "worker/metadata.py"),
        ("integration/worker/test_assignment.py", "integration/worker/test_crashes.py"),
    ),
    "state/*.py": (
        "integration/worker/test_crashes.py",
        "integration/worker/test_pstates.py",
        "integration/worker/test_disks.py",
    ),
    "stretto/network/*.py": (
        "integration/worker/test_reads.py",
        "integration/worker/test_outages.py",
        "integration/daemons/test_hostile_peers.py",
    ),
    "worker/*.py": (
        "integration/worker/test_reads.py",
        "integration/worker/test_pstates.py",
        "integration/worker/test_crashes.py",
        "integration/worker/test_views.py",
    ),
    "stretto/client/*.py": (
        "integration/worker/test_reads.py",
        "integration/worker/test_pstates.py",
        "integration/worker/test_follower_reads.py",
        "integration/worker/test_rounds.py",
    ),
    "stretto/export/columns.py": ("integration/spark/test_export_formats.py",),
    "stretto/export/job.py": (
        "integration/spark/test_export_job.py",
        "integration/spark/test_export_formats.py",
        "integration/spark/test_export.py",
    ),
    "stretto/export/*.py": ("integration/spark/test_export.py",),
    "pyspark_stretto/moments.py": ("integration/spark/test_moments.py",),
    "pyspark_stretto/renewing.py": ("integration/spark/test_moments.py",),
    "pyspark_stretto/options.py": ("integration/spark/test_options.py", "integration/spark/test_batch.py"),
    "pyspark_stretto/sink.py": ("integration/spark/test_streaming.py",),
    "pyspark_stretto/streaming.py": ("integration/spark/test_streaming.py",),
    "pyspark_stretto/*.py": ("integration/spark/test_batch.py",),
}

QUICK = ("tests/unit/", "tests/contracts/test_storage", "tests/contracts/test_folder")

#: What takes too long to be asked for every edit, or is about the whole tree.
NEVER = (
    "tests/unit/mutants/*",
    "tests/unit/test_docs.py",
    "tests/unit/test_examples.py",
    "tests/unit/bench/*",
    "tests/chaos/*",
    "tests/sim/*",
    "tests/integration/bench/*",
)

#: What is not imported but started.
STARTS = {
    "worker/executors/process.py": "worker/executors/child.py",
    "worker/scans/process.py": "worker/scans/child.py",
    "catchup/hashing.py": "catchup/hasher.py",
}

STEPS_MAX = 4
"""From a test to a module: 1 if the test imports it."""
FILES_MAX = 12
"""What more tests reach is used by everybody, and held by the nearest of them; but those of the module's own
room that import it are all asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belonging:
    """The tests of one file: those that are quick, and those that start processes."""

    quick: tuple[str, ...]
    slow: tuple[str, ...]


def targets(root: Path) -> list[str]:
    """The files that are edited, sorted."""
    found = {
        path.relative_to(root).as_posix()
        for pattern in TARGETS
        for path in root.glob(pattern)
        if not any(path.match(each) for each in NOT_TARGETS)
    }
    return sorted(found)


class Suite:
    """All test files of a tree, with what they import."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._imports: dict[str, frozenset[str]] = {}
        paths = (each.relative_to(root).as_posix() for each in sorted(root.glob("tests/**/test_*.py")))
        #: Of each quick test, how many steps it is from it to each module.
        self._steps = {
            path: self._reached_from(path)
            for path in paths
            if path.startswith(QUICK) and not any(fnmatch(path, each) for each in NEVER)
        }

    def of(self, file: str) -> Belonging:
        """Those that belong to a file, in the order in which they are asked."""
        room = next((each for prefix, each in ROOMS.items() if file.startswith(prefix)), ())
        ranked = sorted(
            (
                steps[file],
                not _is_namesake(path, file),
                not path.startswith(room),
                list(steps.values()).count(1),
                path,
            )
            for path, steps in self._steps.items()
            if file in steps and (steps[file] == 1 or path.startswith(room))
        )
        own = sum(not is_far for steps, _, is_far, *_ in ranked if steps == 1)
        slow = next((paths for pattern, paths in ALSO.items() if fnmatch(file, pattern)), ())
        return Belonging(
            quick=tuple(path for *_, path in ranked[: max(own, FILES_MAX)]),
            slow=tuple(f"tests/{each}" for each in slow),
        )

    def _reached_from(self, test: str) -> dict[str, int]:
        steps = dict.fromkeys(self._imported_by(test), 1)
        nearest = list(steps)
        for distance in range(2, STEPS_MAX + 1):
            further = {each for file in nearest for each in self._imported_by(file)} - steps.keys()
            steps |= dict.fromkeys(further, distance)
            nearest = list(further)
        return steps

    def _imported_by(self, file: str) -> frozenset[str]:
        """Modules, as they are named in this tree. Helpers of tests and packages are no step."""
        known = self._imports.get(file)
        if known is None:
            self._imports[file] = frozenset()
            found = set(self._imports_of(file))
            if file in STARTS:
                found.add(STARTS[file])
            for each in sorted(found):
                if each.startswith("tests/") or each.endswith("/__init__.py"):
                    found.discard(each)
                    found |= self._imported_by(each)
            known = self._imports[file] = frozenset(found)
        return known

    def _imports_of(self, file: str) -> Iterator[str]:
        for node in ast.walk(ast.parse((self._root / file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    yield from self._file_of(name)
            elif isinstance(node, ast.Import):
                for each in node.names:
                    yield from self._file_of(each.name)

    def _file_of(self, module: str) -> Iterator[str]:
        """As it is named in this tree: ``stretto/worker`` is a link to ``worker``."""
        if module.split(".", 1)[0] in {"stretto", "pyspark_stretto", "tests"}:
            path = self._root / module.replace(".", "/")
            for each in (path.with_name(path.name + ".py"), path / "__init__.py"):
                if each.exists():
                    yield each.resolve().relative_to(self._root).as_posix()


def _is_namesake(path: str, file: str) -> bool:
    return Path(path).stem == f"test_{Path(file).stem}"
