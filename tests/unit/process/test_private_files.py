"""Who else may read what a cluster keeps: nobody."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stretto.errors import UsageError
from stretto.network.keys import ClusterKey
from stretto.process.folder_lock import lock_folder
from stretto.process.private_files import open_private, private_folder
from stretto.ui.security import load_token


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_data_folder_is_its_owners_alone(tmp_path: Path) -> None:
    os.close(lock_folder(tmp_path / "data"))
    assert mode(tmp_path / "data") == 0o700
    assert mode(tmp_path / "data" / "lock") == 0o600


def test_a_folder_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    os.close(lock_folder(folder))
    assert mode(folder) == 0o700


def test_a_folder_that_other_things_are_in_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys, here, home = (tmp_path / name for name in ("everybodys", "here", "home"))
    for folder, bits in ((everybodys, 0o1777), (here, 0o755), (home, 0o755)):
        folder.mkdir()
        folder.chmod(bits)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert [mode(private_folder(each)) for each in (everybodys, here, home)] == [0o1777, 0o755, 0o755]
    assert mode(private_folder(here / "run")) == 0o700


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    with open_private(tmp_path / "log", "ab") as file:
        file.write(b"x")
    assert mode(tmp_path / "log") == 0o600


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, bits: int) -> None:
    key, token = tmp_path / "key", tmp_path / "token"
    ClusterKey.generate().save(key)
    token.write_text("0123456789abcdef0123456789abcdef")
    for path in (key, token):
        path.chmod(bits)
    with pytest.raises(UsageError, match=rf"{key} is open to others than its owner; first run: chmod 600"):
        ClusterKey.load(key)
    with pytest.raises(UsageError, match=rf"{token} is open to others than its owner; first run: chmod 600"):
        load_token(token)
    for path in (key, token):
        path.chmod(0o600)
    ClusterKey.load(key)
    load_token(token)
