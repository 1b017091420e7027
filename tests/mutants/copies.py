"""A copy of the tree, in which edits are made: the tree itself is never touched.

An interrupted run leaves nothing but a folder among the temporary ones. What is compiled is checked by its
content, not by its time, so that an edit that is made and undone within a second is never missed.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.edits import Edit


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """The files that git knows of, or would know of, in a folder of their own, for as long as it is used."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=False,
            capture_output=True,
            text=True,
        )
        if listed.returncode != 0:
            sys.exit(f"edits are made in a copy of what git knows of, and {root} is no clone; run it in one")
        for name in filter(None, listed.stdout.split("\0")):
            source, target = root / name, copy / name
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        compileall.compile_dir(
            copy, quiet=2, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH, workers=1
        )
        yield copy


@contextmanager
def edited(copy: Path, edit: Edit | None) -> Iterator[None]:
    """Make the edit in a copy, and undo it."""
    if edit is None:
        yield
        return
    path = copy / edit.file
    source = path.read_text()
    path.write_text(edit.applied(source))
    try:
        yield
    finally:
        path.write_text(source)
