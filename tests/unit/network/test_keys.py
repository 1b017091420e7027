"""The file of a cluster key, whole and otherwise."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from stretto.errors import UsageError
from stretto.network.keys import ClusterKey


def test_a_key_is_read_as_it_was_written_and_is_its_owners_alone(tmp_path: Path) -> None:
    key, path = ClusterKey.generate(), tmp_path / "key"
    key.save(path)
    assert ClusterKey.load(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="exists already"):
        ClusterKey.generate().save(path)


@pytest.mark.parametrize("public", ["\N{LATIN SMALL LETTER E WITH ACUTE}" * 40, " " * 40, "x" * 40])
def test_a_file_with_forty_characters_that_are_no_key_is_refused(tmp_path: Path, public: str) -> None:
    path = tmp_path / "key"
    secret = ClusterKey.generate().secret.decode()
    path.write_bytes(msgspec.json.encode({"version": 1, "public": public, "secret": secret}))
    with pytest.raises(UsageError, match="is not a cluster key"):
        ClusterKey.load(path)


def test_a_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"cluster key .*/key cannot be read \(No such file or directory\); name"
    ):
        ClusterKey.load(tmp_path / "key")
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        ClusterKey.load(tmp_path)


def test_halves_of_two_keys_are_refused(tmp_path: Path) -> None:
    one, other = ClusterKey.generate(), ClusterKey.generate()
    path = tmp_path / "key"
    ClusterKey(one.public, other.secret).save(path)
    with pytest.raises(UsageError, match="its halves do not belong together; copy it again"):
        ClusterKey.load(path)
