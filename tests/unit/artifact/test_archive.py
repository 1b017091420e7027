"""Archives: the same bytes for the same code, and nothing that leaves its folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.artifact import archive as archives
from stretto.artifact.archive import Entry, check_digest, digest_of, is_unpacked, pack, unpack
from stretto.errors import PeerError, UsageError

parts = st.text("abé_-. ", min_size=1, max_size=4).filter(lambda part: part not in {".", ".."})
trees = st.dictionaries(
    st.builds(lambda folders, name: "/".join([*folders, f"{name}.py"]), st.lists(parts, max_size=3), parts),
    st.binary(max_size=50),
    min_size=1,
    max_size=6,
)


def entries_of(tree: dict[str, bytes]) -> list[Entry]:
    return [Entry(name=name, content=content) for name, content in tree.items()]


def is_packable(tree: dict[str, bytes]) -> bool:
    folders = {"/".join(name.split("/")[:depth]) for name in tree for depth in range(1, name.count("/") + 1)}
    return not folders & set(tree)


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(deadline=None)
@given(trees.filter(is_packable), st.randoms())
def test_the_same_content_has_the_same_digest_in_any_order(tree: dict[str, bytes], random: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shuffled = entries_of(tree)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        first = pack(entries_of(tree), Path(folder, "a"))
        second = pack(shuffled, Path(folder, "b"))
        assert first.digest == second.digest == digest_of(first.path)
        assert first.path.read_bytes() == second.path.read_bytes()
        assert first.size == first.path.stat().st_size
        assert [path.name for path in Path(folder, "a").iterdir()] == [f"{first.digest}.zip"]


@settings(deadline=None)
@given(trees.filter(is_packable))
def test_what_is_unpacked_is_what_was_packed(tree: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        artifact = pack(entries_of(tree), Path(folder))
        unpack(artifact.path, Path(folder, "code"))
        assert written(Path(folder, "code")) == tree
        assert is_unpacked(artifact.path, Path(folder, "code"))


def test_times_and_permissions_of_files_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("x = 1\n")
    first = pack([Entry(name="m.py", content=file)], tmp_path / "out")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    file.chmod(0o700)
    assert pack([Entry(name="m.py", content=file)], tmp_path / "out") == first


def test_a_digest_is_that_of_every_release(tmp_path: Path) -> None:
    """Packed anew by another release or on another machine, the same code is the same artifact."""
    artifact = pack([Entry(name="m.py", content=b"x = 1\n"), Entry(name="a/b.txt", content=b"")], tmp_path)
    assert artifact.digest == "599810df59126051f98b8caa24e433b7b2ed84418388d4514bd57af0ed0e9b6f"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a//b", "a/", "./a", "..", "a\\..\\x", "a\0b", ""]
)
def test_a_name_that_leaves_its_folder_is_neither_packed_nor_unpacked(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a file below"):
        pack([Entry(name=name, content=b"x")], tmp_path / "out")
    if "\0" in name or not name:
        return  # zipfile writes no such name
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("fine.py", b"x")
        archive.writestr(name, b"x")
    with pytest.raises(PeerError, match="not the name of a file below"):
        unpack(evil, tmp_path / "code")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.zip"]


@settings(deadline=None)
@given(st.binary(max_size=200), st.data())
def test_no_damage_to_an_archive_goes_beyond_its_folder(noise: bytes, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        artifact = pack(
            [Entry(name="pkg/a.py", content=b"a" * 50), Entry(name="b.py", content=b"b")], Path(folder)
        )
        whole = artifact.path.read_bytes()
        at = data.draw(st.integers(0, len(whole)))
        artifact.path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
        code = Path(folder, "code")
        with contextlib.suppress(PeerError):
            unpack(artifact.path, code)
        assert {path.name for path in Path(folder).iterdir()} <= {artifact.path.name, "code"}


@pytest.mark.parametrize("names", [["a", "a/b"], ["a/b/c", "a/b"], ["a", "a"]])
def test_a_name_that_stands_for_two_things_is_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot be packed"):
        pack([Entry(name=name, content=b"") for name in names], tmp_path)


def test_an_archive_that_unpacks_to_more_than_its_size_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(10_000_000))
    with pytest.raises(PeerError, match="compressed"):
        unpack(bomb, tmp_path / "code")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK nothing of the kind")
    with pytest.raises(PeerError, match="no archive"):
        unpack(tmp_path / "x.zip", tmp_path / "code")


def test_a_changed_or_missing_file_is_noticed_and_an_added_one_is_not(tmp_path: Path) -> None:
    artifact = pack([Entry(name="a.py", content=b"1"), Entry(name="p/b.py", content=b"2")], tmp_path)
    code = tmp_path / "code"
    unpack(artifact.path, code)
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "a.pyc").write_bytes(b"")
    assert is_unpacked(artifact.path, code)
    (code / "a.py").write_bytes(b"3")
    assert not is_unpacked(artifact.path, code)
    (code / "a.py").unlink()
    assert not is_unpacked(artifact.path, code)


def test_too_much_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ARTIFACT_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="11 bytes of code are beyond the limit of 10"):
        pack([Entry(name="a", content=b"x" * 11)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "digest", ["", "ab", "A" * 64, "g" * 64, "a" * 65, "../" + "a" * 61, "a" * 64 + "\n"]
)
def test_what_is_no_digest_names_no_file(digest: str) -> None:
    with pytest.raises(UsageError, match="is no digest"):
        check_digest(digest)
    assert check_digest("0f" * 32) == "0f" * 32
