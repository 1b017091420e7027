"""What a process presents to ZooKeeper: a file that only its owner can read."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from stretto.errors import UsageError
from stretto.zk.sessions.credentials import Credentials, kazoo_options


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [b"stretto:se:cret", b"stretto:se:cret\n"])
def test_a_file_holds_one_line(tmp_path: Path, content: bytes) -> None:
    found = Credentials.load(written(tmp_path / "zk", content, 0o400))
    assert found == Credentials("stretto", "se:cret")
    assert "se:cret" not in repr(found)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "a file", b"stretto:secret", mode)
    with pytest.raises(UsageError) as refused:
        Credentials.load(path)
    command = str(refused.value).partition("first run: ")[2]
    assert shlex.split(command) == ["chmod", "600", str(path)]


@pytest.mark.parametrize("content", [b"", b"\n", b"stretto", b"stretto:", b":secret", b"a:b\nc:d", b"\xff:b"])
def test_what_is_no_credentials_is_told_so(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError, match="write one line, user:password"):
        Credentials.load(written(tmp_path / "zk", content))


def test_what_is_created_is_for_who_has_them_alone() -> None:
    options = kazoo_options(Credentials("stretto", "secret"))
    [acl] = options["default_acl"]
    assert acl.id.scheme == "digest"
    assert "secret" not in acl.id.id
    assert acl.acl_list == ["ALL"]
    assert kazoo_options(None) == {}
