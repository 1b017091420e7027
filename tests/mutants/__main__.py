"""How many slips of the hand the tests notice: ``make mutants SECONDS=600 SEED=7``.

Edits are drawn by the seed from all that :mod:`tests.mutants.edits` finds, one after the other until the time
is over. Each is made in a copy of the tree and meets the tests that belong to its file. What they do not
notice survives, and is shown with how to try it again. What cannot do harm, although it looks so, is listed
with its reason in ``equivalents.toml`` and left out.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.belonging import Suite, targets
from tests.mutants.copies import copy_of, edited
from tests.mutants.edits import Edit, edits_of
from tests.mutants.runs import Run, load_libraries, run

ROOT = Path(__file__).resolve().parents[2]
QUICK_SECONDS = 150.0
SLOW_SECONDS = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an edit."""

    edit: Edit
    is_caught: bool
    by: str


def equivalents(root: Path) -> set[tuple[str, str, str]]:
    """File, line before and line after of the edits that change nothing."""
    listed = tomllib.loads((root / "tests/mutants/equivalents.toml").read_text())["equivalent"]
    for each in listed:
        if not each["reason"]:
            raise ValueError(f"an equivalent of {each['file']} is listed without a reason")
    return {(each["file"], each["before"], each["after"]) for each in listed}


def candidates(root: Path, patterns: Sequence[str]) -> list[Edit]:
    """All edits of the files that match one of the patterns, but for equivalent ones."""
    left_out = equivalents(root)
    found = []
    for file in targets(root):
        if any(fnmatch(file, pattern) for pattern in patterns):
            source = (root / file).read_text()
            found += [edit for edit in edits_of(source, file) if (file, *edit.lines(source)) not in left_out]
    return found


class Trial:
    """A copy of the tree in which edits meet their tests."""

    def __init__(self, root: Path, copy: Path, *, quick_only: bool) -> None:
        self._copy = copy
        self._tests = Suite(root)
        self._quick_only = quick_only
        #: Tests that have failed on an edit, and whether they pass without one.
        self._is_sound: dict[str, bool] = {}

    def of(self, edit: Edit) -> Outcome:
        """Make the edit, and run its tests until one fails."""
        belonging = self._tests.of(edit.file)
        for tests, seconds in ((belonging.quick, QUICK_SECONDS), (belonging.slow, SLOW_SECONDS)):
            if not tests or (self._quick_only and tests is belonging.slow):
                continue
            with edited(self._copy, edit):
                result = run(self._copy, tests, seconds=seconds)
            if not result.is_green:
                self._require_sound(result, tests, seconds)
                return Outcome(edit=edit, is_caught=True, by=result.by)
        return Outcome(edit=edit, is_caught=False, by="")

    def _require_sound(self, result: Run, tests: tuple[str, ...], seconds: float) -> None:
        """What fails on an edit has to pass without it."""
        file = result.by.split("::")[0]
        asked = (file,) if file in {each for each in tests if each.endswith(".py")} else tests
        for each in asked:
            if each not in self._is_sound:
                unedited = run(self._copy, (each,), seconds=seconds)
                self._is_sound[each] = unedited.is_green
                if not unedited.is_green:
                    print(unedited.output)
            if not self._is_sound[each]:
                sys.exit(f"{each} fails on the tree as it is; mend that first")


def report(outcomes: Sequence[Outcome], seed: int) -> None:
    """The rate, and the survivors with how to try them again."""
    survivors = [each.edit for each in outcomes if not each.is_caught]
    for edit in survivors:
        print(f"\n{edit.diff((ROOT / edit.file).read_text())}")
        print(f"again: make mutants ONLY={edit.name}")
    if outcomes:
        caught = len(outcomes) - len(survivors)
        print(
            f"\n{caught} of {len(outcomes)} edits were noticed, {100 * caught / len(outcomes):.1f}% "
            f"(seed {seed})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no edit after so long")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--files", default="*", help="patterns of files, with commas in between")
    parser.add_argument("--only", default="", help="one edit, by its name")
    parser.add_argument("--quick", action="store_true", help="without tests that start clusters")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    edits = candidates(ROOT, options.files.split(","))
    if options.only:
        edits = [edit for edit in edits if edit.name == options.only]
        if not edits:
            sys.exit(f"there is no edit {options.only}; the file may have changed since it was told")
    random.Random(options.seed).shuffle(edits)
    print(f"{len(edits)} edits, seed {options.seed}", flush=True)
    load_libraries()
    outcomes: list[Outcome] = []
    try:
        with copy_of(ROOT) as copy:
            began = time.monotonic()
            trial = Trial(ROOT, copy, quick_only=options.quick)
            for edit in edits:
                if time.monotonic() - began > options.seconds:
                    break
                since = time.monotonic()
                outcomes.append(outcome := trial.of(edit))
                word = "noticed " if outcome.is_caught else "SURVIVED"
                print(f"{word} {time.monotonic() - since:5.1f} s  {edit.name}  {outcome.by}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    report(outcomes, options.seed)


if __name__ == "__main__":
    main()
