"""The artifacts of a node: nothing is kept that is not what its digest says, whatever comes in what order."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stretto import control
from stretto.artifact.archive import ARTIFACT_BYTES_MAX, PIECE_BYTES, Artifact, Entry, pack
from stretto.client.operating.upload import upload
from stretto.errors import PeerError, StrettoError, UsageError
from stretto.network.asking import ask, ask_with_body
from stretto.supervisor import artifacts
from stretto.supervisor.artifacts import ArtifactStore
from tests.support.serving import serving
from tests.support.syncs import RecordedSyncs


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put_all(store: ArtifactStore, content: bytes, step: int = PIECE_BYTES) -> None:
    for offset in range(0, len(content), step):
        store.put(digest(content), offset, len(content), content[offset : offset + step])


def names(store: ArtifactStore) -> list[str]:
    """Of all that it holds, without what differs from run to run."""
    return sorted(re.sub(r"[0-9a-f]{64}|[0-9a-f]{8}$", "*", path.name) for path in store._folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """Of two and a half pieces."""
    content = os.urandom(PIECE_BYTES * 5 // 2)
    return pack(
        [Entry(name="m.py", content=b"x = 1\n"), Entry(name="p/data", content=content)], tmp_path / "made"
    )


def test_an_artifact_is_on_disk_before_it_is_told_to_be_kept(
    store: ArtifactStore, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = RecordedSyncs(monkeypatch)
    put_all(store, artifact.path.read_bytes())
    assert store.has(artifact.digest)
    assert syncs.lacks(store._folder) == []


class Uploads(RuleBasedStateMachine):
    """Pieces that overlap, repeat, lie and stop half-way: what is kept is right or is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)

    @initialize(content=st.binary(min_size=1, max_size=60))
    def begin(self, content: bytes) -> None:
        self.content = content
        self.digest = digest(content)
        self.store = ArtifactStore(self.folder)
        self.part = b""
        self.is_whole = False

    @rule(at=st.integers(0, 60), length=st.integers(1, 60), lie=st.booleans(), extra=st.integers(-3, 3))
    def put(self, at: int, length: int, lie: bool, extra: int) -> None:
        size = len(self.content) + (extra if lie else 0)
        piece = (b"!" * 99 if lie else self.content)[at : at + length][: max(0, size - at)]
        if not piece or size < 1:
            return
        try:
            whole = self.store.put(self.digest, at, size, piece)
        except UsageError:
            assert not self.is_whole
            assert at > len(self.part)
            return
        except PeerError:
            written = self.part[:at] + piece + self.part[at + len(piece) :]
            assert len(written) >= size
            assert written != self.content
            self.part = b""
            return
        if not self.is_whole:
            self.part = self.part[:at] + piece + self.part[at + len(piece) :]
            self.is_whole = whole
            assert whole == (self.part == self.content)

    @rule()
    def restart(self) -> None:
        self.store = ArtifactStore(self.folder)

    @rule()
    def go_on_honestly(self) -> None:
        """A part that was whole but for a lie is refused once, and the second attempt succeeds."""
        for _ in range(2):
            try:
                self._send_rest()
                break
            except PeerError:
                self.part = b""
        assert self.store.has(self.digest)
        self.is_whole = True

    def _send_rest(self) -> None:
        held = self.store.held(self.digest)
        start = held if held < len(self.content) else 0
        assert self.store.put(self.digest, start, len(self.content), self.content[start:])

    @invariant()
    def what_is_served_is_right(self) -> None:
        assert self.store.has(self.digest) == self.is_whole
        if self.is_whole:
            assert self.store.get(self.digest, 0) == (len(self.content), self.content)
        else:
            assert self.store.held(self.digest) == len(self.part)

    def teardown(self) -> None:
        self._temporary.cleanup()


TestUploads = Uploads.TestCase
TestUploads.settings = settings(deadline=None)


def test_pieces_make_a_whole_and_come_back_in_pieces(store: ArtifactStore, artifact: Artifact) -> None:
    content = artifact.path.read_bytes()
    assert not store.has(artifact.digest)
    put_all(store, content)
    assert store.has(artifact.digest)
    got = b""
    while len(got) < artifact.size:
        size, piece = store.get(artifact.digest, len(got))
        assert size == artifact.size
        assert 0 < len(piece) <= PIECE_BYTES
        got += piece
    assert got == content


@pytest.mark.parametrize(
    ("offset", "size", "piece"),
    [
        (0, 0, b"x"),
        (0, ARTIFACT_BYTES_MAX + 1, b"x"),
        (0, -1, b"x"),
        (-1, 5, b"x"),
        (5, 5, b"x"),
        (0, 5, b""),
        (0, 5, b"sixsix"),
        (0, PIECE_BYTES * 2, bytes(PIECE_BYTES + 1)),
        (1, 5, b"x"),
    ],
)
def test_what_is_no_piece_is_refused_and_leaves_nothing(
    store: ArtifactStore, offset: int, size: int, piece: bytes
) -> None:
    with pytest.raises(UsageError):
        store.put("0" * 64, offset, size, piece)
    assert names(store) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "x" * 64, ""])
def test_what_is_no_digest_reaches_no_file(store: ArtifactStore, name: str) -> None:
    for touch in (
        store.has,
        store.held,
        store.path,
        lambda d: store.get(d, 0),
        lambda d: store.put(d, 0, 1, b"x"),
    ):
        with pytest.raises(UsageError, match="is no digest"):
            touch(name)


def test_a_wrong_digest_is_refused_and_removed(store: ArtifactStore) -> None:
    with pytest.raises(PeerError, match="its digest differs"):
        store.put("0" * 64, 0, 3, b"abc")
    assert names(store) == []
    with pytest.raises(StrettoError, match="is not here"):
        store.get("0" * 64, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_damage_on_disk_is_noticed_set_aside_and_mended_by_another_upload(
    store: ArtifactStore, artifact: Artifact, restarted: bool
) -> None:
    content = artifact.path.read_bytes()
    put_all(store, content)
    whole = store._whole(artifact.digest)
    later_ns = whole.stat().st_mtime_ns + 1_000_000_000
    whole.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(whole, ns=(later_ns, later_ns))
    if restarted:
        store = ArtifactStore(store._folder)
    assert not store.has(artifact.digest)
    assert names(store) == ["damaged.*.*"]
    put_all(store, content)
    assert store.has(artifact.digest)


def test_it_is_unpacked_once_and_unpacked_again_when_that_is_damaged(
    store: ArtifactStore, artifact: Artifact
) -> None:
    put_all(store, artifact.path.read_bytes())
    code = store.path(artifact.digest)
    assert (code / "m.py").read_bytes() == b"x = 1\n"
    (code / "__pycache__").mkdir()
    inode = code.stat().st_ino
    assert ArtifactStore(store._folder).path(artifact.digest).stat().st_ino == inode

    (code / "m.py").write_bytes(b"x = 2\n")
    again = ArtifactStore(store._folder).path(artifact.digest)
    assert again == code
    assert (again / "m.py").read_bytes() == b"x = 1\n"
    assert again.stat().st_ino != inode


def test_unpacking_that_was_cut_short_is_done_anew(store: ArtifactStore, artifact: Artifact) -> None:
    put_all(store, artifact.path.read_bytes())
    unfinished = store._folder / f"{artifact.digest}.unpacking"
    unfinished.mkdir()
    (unfinished / "half").write_bytes(b"")
    code = ArtifactStore(store._folder).path(artifact.digest)
    assert sorted(path.name for path in code.iterdir()) == ["m.py", "p"]


@pytest.mark.parametrize("name", ["../outside", "/tmp/stretto-outside", "a/../../outside"])
def test_an_archive_that_leaves_its_folder_is_kept_and_never_unpacked(
    store: ArtifactStore, tmp_path: Path, name: str
) -> None:
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr(name, b"x")
    put_all(store, evil.read_bytes())
    with pytest.raises(PeerError, match="not the name of a file below"):
        store.path(digest(evil.read_bytes()))
    assert not list(tmp_path.rglob("outside"))
    assert not Path("/tmp/stretto-outside").exists()


def test_a_part_is_given_up_after_a_day(store: ArtifactStore) -> None:
    store.put("0" * 64, 0, 10, b"fresh")
    store.put("1" * 64, 0, 10, b"old")
    old = store._part("1" * 64)
    long_ago = old.stat().st_mtime - artifacts.PART_SECONDS_MAX - 1
    os.utime(old, (long_ago, long_ago))
    again = ArtifactStore(store._folder)
    assert (again.held("0" * 64), again.held("1" * 64)) == (5, 0)


def test_a_disk_that_refuses_is_told_in_a_sentence(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StrettoError, match=r"cannot be written here \(No space left on device\)"):
        store.put("0" * 64, 0, 10, b"x")


def test_many_at_once_upload_the_same_artifact(store: ArtifactStore, artifact: Artifact) -> None:
    content = artifact.path.read_bytes()
    begin = threading.Barrier(4)

    def one(step: int) -> None:
        begin.wait(10)
        put_all(store, content, step)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(one, step) for step in (PIECE_BYTES, 700_000, 300_000, 100_000)]:
            done.result(60)
    assert store.get(artifact.digest, 0)[0] == artifact.size
    assert names(store) == ["*.zip"]


# Over real sockets.


def handler(store: ArtifactStore) -> Callable[[control.AnyCall, list[memoryview]], object]:
    def handle(call: control.AnyCall, bodies: list[memoryview]) -> object:
        assert isinstance(
            call, control.HasArtifact | control.HeldOfArtifact | control.PutArtifact | control.GetArtifact
        )
        return store.handle(call, bodies)

    return handle


def refusing(_: control.AnyCall, __: list[memoryview]) -> object:
    raise StrettoError("this node is on fire")


def test_calls_put_and_get(store: ArtifactStore) -> None:
    name = digest(b"abcdef")
    with serving(handler(store)) as (network, address):
        assert ask(network, address, control.HasArtifact(digest=name)) is False
        put = control.PutArtifact(digest=name, offset=0, size=6)
        assert ask(network, address, put, (b"abc",)) is False
        assert ask(network, address, control.HeldOfArtifact(digest=name)) == 3
        with pytest.raises(StrettoError, match="one body, not 0"):
            ask(network, address, put)
        assert ask(network, address, control.PutArtifact(digest=name, offset=3, size=6), (b"def",)) is True
        assert ask(network, address, control.HasArtifact(digest=name)) is True
        size, bodies = ask_with_body(network, address, control.GetArtifact(digest=name, offset=4))
        assert (size, bytes(bodies[0])) == (6, b"ef")
        with pytest.raises(StrettoError, match="has 6 bytes, and none at 6"):
            ask(network, address, control.GetArtifact(digest=name, offset=6))


def stores(folder: Path, count: int) -> list[ArtifactStore]:
    return [ArtifactStore(folder / f"node{number}") for number in range(count)]


def test_an_upload_reaches_as_many_nodes_as_are_needed_and_skips_those_that_have_it(
    tmp_path: Path, artifact: Artifact
) -> None:
    first, second, third = stores(tmp_path, 3)
    put_all(third, artifact.path.read_bytes())
    told: list[tuple[str, int, int]] = []
    with (
        serving(handler(first)) as (network, a),
        serving(handler(second)) as (_, b),
        serving(handler(third)) as (_, c),
    ):
        keeping = upload(network, [a, b, c], artifact, copies=2, progress=lambda *each: told.append(each))
        assert keeping == [c, a]
        assert [node.has(artifact.digest) for node in (first, second, third)] == [True, False, True]
        steps = [PIECE_BYTES, 2 * PIECE_BYTES, artifact.size]
        assert told == [(a, held, artifact.size) for held in steps]


def test_an_upload_goes_on_where_it_stopped(tmp_path: Path, artifact: Artifact) -> None:
    (store,) = stores(tmp_path, 1)
    store.put(artifact.digest, 0, artifact.size, artifact.path.read_bytes()[:PIECE_BYTES])
    told: list[int] = []
    with serving(handler(store)) as (network, address):
        upload(network, [address], artifact, copies=1, progress=lambda _, held, __: told.append(held))
    assert told == [2 * PIECE_BYTES, artifact.size]


@pytest.mark.parametrize("garbage", [b"garbage", None], ids=["shorter", "as long as the whole"])
def test_an_upload_begins_again_when_what_the_node_had_was_wrong(
    tmp_path: Path, artifact: Artifact, garbage: bytes | None
) -> None:
    (store,) = stores(tmp_path, 1)
    store._part(artifact.digest).write_bytes(garbage or bytes(artifact.size))
    with serving(handler(store)) as (network, address):
        assert upload(network, [address], artifact, copies=1) == [address]
    assert store.has(artifact.digest)


def test_an_upload_passes_over_a_node_that_fails_and_says_why_if_too_few_are_left(
    tmp_path: Path, artifact: Artifact
) -> None:
    (store,) = stores(tmp_path, 1)
    with serving(refusing) as (network, a), serving(handler(store)) as (_, b):
        assert upload(network, [a, b], artifact, copies=1) == [b]
        with pytest.raises(StrettoError) as refused:
            upload(network, [a, b], artifact, copies=2)
    assert f"on 1 of the 2 nodes that it needs ({a}: this node is on fire)" in str(refused.value)


def test_an_artifact_is_fetched_from_the_first_node_that_gives_it(tmp_path: Path, artifact: Artifact) -> None:
    mine, empty, lying, good = stores(tmp_path, 4)
    put_all(good, artifact.path.read_bytes())

    def lie(call: control.AnyCall, bodies: list[memoryview]) -> object:
        assert isinstance(call, control.GetArtifact)
        put_all(lying, b"something else")
        return lying.handle(control.GetArtifact(digest=digest(b"something else"), offset=0), bodies)

    with (
        serving(handler(empty)) as (network, a),
        serving(refusing) as (_, b),
        serving(lie) as (_, c),
        serving(handler(good)) as (_, d),
    ):
        mine.fetch(network, artifact.digest, [a, b, c, d])
        assert mine.has(artifact.digest)
        mine.fetch(network, artifact.digest, [])
        with pytest.raises(StrettoError) as refused:
            empty.fetch(network, artifact.digest, [b, c])
    assert f"{b}: this node is on fire" in str(refused.value)
    assert "its digest differs" in str(refused.value)


@pytest.mark.parametrize("length", [1_000, PIECE_BYTES + 7, None])
def test_a_fetch_begins_again_when_what_was_here_was_wrong(
    tmp_path: Path, artifact: Artifact, length: int | None
) -> None:
    mine, good = stores(tmp_path, 2)
    put_all(good, artifact.path.read_bytes())
    mine._part(artifact.digest).write_bytes(bytes(length or artifact.size + 5))
    with serving(handler(good)) as (network, address):
        mine.fetch(network, artifact.digest, [address])
    assert mine.has(artifact.digest)


def test_a_damaged_artifact_is_fetched_again_from_another_node(tmp_path: Path, artifact: Artifact) -> None:
    mine, good = stores(tmp_path, 2)
    for node in (mine, good):
        put_all(node, artifact.path.read_bytes())
    mine._whole(artifact.digest).write_bytes(b"rotten")
    with serving(handler(good)) as (network, address):
        mine.fetch(network, artifact.digest, [address])
    assert mine.path(artifact.digest).is_dir()
    assert len(list(mine._folder.glob("damaged.*"))) == 1


@settings(deadline=None)
@given(at=st.integers(0, 2), flip=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_piece_is_never_kept(at: int, flip: int, cut: bool) -> None:
    content = b"abcdefghi"
    pieces = [content[:3], content[3:6], content[6:]]
    damaged = pieces[at][:-1] if cut else bytes([pieces[at][0] ^ flip]) + pieces[at][1:]
    pieces[at] = damaged
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder))
        try:
            for number, piece in enumerate(pieces):
                store.put(digest(content), number * 3, 9, piece)
        except StrettoError:
            pass
        assert store.has(digest(content)) == (b"".join(pieces) == content)


# What nobody uses.


def test_code_that_no_module_uses_goes_after_a_while_and_can_be_put_again(
    store: ArtifactStore, artifact: Artifact
) -> None:
    used, unused = artifact.path.read_bytes(), b"other code"
    for content in (used, unused):
        put_all(store, content)
    store.path(digest(used))
    (store._folder / "notes.zip").write_bytes(b"somebody's own")
    assert store.sweep({digest(used)}) == []
    assert store.sweep({digest(used)}, unused_seconds=0) == [digest(unused)]
    assert store.has(digest(used))
    assert not store.has(digest(unused))
    assert store.sweep(set(), unused_seconds=0) == [digest(used)]
    assert names(store) == ["notes.zip"]
    put_all(store, used)
    assert (store.path(digest(used)) / "m.py").read_bytes() == b"x = 1\n"


def test_code_that_somebody_asked_for_lately_stays(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"code"
    put_all(store, content)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3_000)
    assert store.has(digest(content))
    monkeypatch.setattr(time, "monotonic", lambda: now + 6_000)
    assert store.sweep(set()) == []
    monkeypatch.setattr(time, "monotonic", lambda: now + 7_000)
    assert store.sweep(set()) == [digest(content)]
