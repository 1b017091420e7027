from __future__ import annotations

import pytest

from stretto.vocabulary.suggest import did_you_mean


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (["events", "sentences"], "did you mean sentences?"),
        (["zebra"], "there is zebra"),
        (["zebra", "ape"], "there are ape, zebra"),
        ([], "there are none"),
        ([f"z{number}" for number in range(10)], "there are z0, z1, z2, z3, z4, z5, z6, z7, ..."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_what_there_is(
    known: list[str], sentence: str
) -> None:
    assert did_you_mean("sentence", known) == sentence
