"""Module code as one file that travels: found, packed, described, unpacked.

A person names a source (:mod:`~stretto.artifact.sources`); it becomes one archive that is the same, byte for
byte, wherever it is packed (:mod:`~stretto.artifact.archive`), and is known by its digest from then on. What
it declares is found by importing it in a process of its own (:mod:`~stretto.artifact.describe`), so that
neither the CLI nor a daemon ever runs a user's code.
"""

from __future__ import annotations

from pathlib import Path

from stretto.artifact.archive import ARTIFACT_BYTES_MAX, Artifact
from stretto.artifact.archive import pack as _pack
from stretto.artifact.describe import describe
from stretto.artifact.sources import find
from stretto.control import ModuleManifest

__all__ = ["ARTIFACT_BYTES_MAX", "Artifact", "describe", "load"]


def load(source: str, folder: Path) -> tuple[Artifact, ModuleManifest]:
    """Pack the code that a person named into ``folder``, and return that and what it declares.

    Raises UsageError for what cannot be found or packed, ModuleError for what does not load.
    """
    found = find(source)
    artifact = _pack(found.entries, folder)
    return artifact, describe(
        artifact.path, found.module, found.name, label=found.label, shown_folder=found.shown_folder
    )
