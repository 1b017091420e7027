"""The language of the scripts: what it refuses, and how it says so."""

from __future__ import annotations

import pytest

from stretto.sim.replication.scenario import ExpectationFailed, Script, run_script, scripts


def run(text: str) -> str | None:
    return run_script(Script.parse("test", text)).violation


def test_the_comment_on_top_is_the_story_and_lines_keep_their_numbers() -> None:
    script = Script.parse("x", "# Once\n# upon a time.\nreplicas 2\n\nappend a  # first\n# not the story\n")
    assert script.story == "Once upon a time."
    assert script.lines == ((3, "replicas 2"), (5, "append a"))


def test_the_mutants_that_a_script_must_catch_are_in_its_header() -> None:
    assert Script.parse("x", "catches one two\ncatches three\nrun 1").catches == ("one", "two", "three")


def test_an_expectation_that_does_not_hold_names_file_line_and_situation() -> None:
    with pytest.raises(ExpectationFailed, match=r"test\.txt:2: expect leader w1: .* leader w0"):
        run("run 10\nexpect leader w1")


def test_an_expectation_that_never_holds_is_a_violation_of_liveness() -> None:
    violation = run("until leader w2")
    assert violation is not None
    assert "it never held" in violation


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("dance w0", "there is no command 'dance'"),
        ("expect happiness", "nobody can expect 'happiness'"),
        ("option no_such_option 3", "there is no option 'no_such_option'"),
    ],
)
def test_what_the_language_does_not_know_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ExpectationFailed, match=sentence):
        run(line)


def test_a_script_of_a_few_words_runs() -> None:
    assert run("replicas 2\nappend a\nuntil acked a\nexpect isr w0 w1\nexpect visible a") is None


def test_every_shipped_script_tells_its_story() -> None:
    shipped = scripts()
    assert len(shipped) >= 14
    for script in shipped:
        assert script.story.endswith("."), script.name
