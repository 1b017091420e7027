"""Past bugs of this field as scripts: each passes, and without the rule it is about a checker sees it."""

from __future__ import annotations

import pytest

from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import ExpectationFailed, Script, run_script, scripts

SCRIPTS = {script.name: script for script in scripts()}
GUARDS = {mutant.name: mutant.guards for mutant in MUTANTS}
CATCHES = [(script.name, mutant) for script in SCRIPTS.values() for mutant in script.catches]

NAMED_IN_THE_FIELD = (
    "kip-101-truncation-by-high-watermark",
    "kip-279-fast-double-failover",
    "kafka-7164-missed-epoch-same-leader",
    "kafka-10706-empty-epochs",
    "kip-903-rebooted-empty-while-entering",
    "wiped-member-still-listed",
    "kip-966-last-member-loses-unsynced",
    "leader-restarts-within-its-session",
    "compare-and-set-refused-after-a-blip",
    "expansion-whose-reply-was-lost",
    "stall-at-min-isr-and-recovery",
    "stall-with-a-dead-disk-and-a-replacement",
    "paused-leader-resumes-after-its-lease",
    "duplicate-while-the-original-is-unapplied",
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_passes(name: str) -> None:
    verdict = run_script(SCRIPTS[name])
    assert verdict.violation is None, f"stretto sim --scenario {name}\n" + "\n".join(verdict.story)


@pytest.mark.parametrize(("name", "mutant"), CATCHES, ids=[f"{name}-{mutant}" for name, mutant in CATCHES])
def test_the_script_catches_the_mutant_it_names(name: str, mutant: str) -> None:
    assert violation_of(SCRIPTS[name], mutant) is not None, f"stretto sim --scenario {name} --mutant {mutant}"


def violation_of(script: Script, mutant: str) -> str | None:
    """What a checker said; a line of the script that does not hold is not enough."""
    try:
        return run_script(script, GUARDS[mutant]).violation
    except ExpectationFailed as failed:
        pytest.fail(f"only the script noticed: {failed}")


def test_the_known_bugs_are_all_scripted() -> None:
    assert set(NAMED_IN_THE_FIELD) <= SCRIPTS.keys()


def test_what_scripts_claim_to_catch_exists() -> None:
    assert {mutant for script in SCRIPTS.values() for mutant in script.catches} <= GUARDS.keys()
