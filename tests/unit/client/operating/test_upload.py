"""An artifact goes to as many nodes as it is needed on, and goes on where an upload stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stretto import control
from stretto.artifact.archive import Artifact
from stretto.client.operating import upload as uploading
from stretto.client.operating.upload import upload
from stretto.errors import StrettoError
from stretto.network.routing import Network

CONTENT = b"0123456789"
NETWORK: Any = None


class Nodes:
    """Supervisors by their addresses: what each has of the artifact."""

    def __init__(self, **held: bytes) -> None:
        self.held = held
        self.fails: set[str] = set()
        self.puts: list[tuple[str, int, bytes]] = []

    def ask(
        self, _: Network, address: str, call: control.Call[Any], bodies: Any = (), *, timeout: float = 0.0
    ) -> Any:
        if address in self.fails:
            raise StrettoError("nothing answers")
        match call:
            case control.HasArtifact():
                return self.held[address] == CONTENT
            case control.HeldOfArtifact():
                return len(self.held[address])
            case control.PutArtifact(offset=offset, size=size):
                assert (size, timeout) == (len(CONTENT), uploading.PIECE_SECONDS)
                self.puts.append((address, offset, bodies[0]))
                self.held[address] = self.held[address][:offset] + bodies[0]
                if len(self.held[address]) < size:
                    return False
                if self.held[address] != CONTENT:
                    raise StrettoError("the digest is another")
                return True
            case _:
                raise AssertionError(call)


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setattr(uploading, "PIECE_BYTES", 4)
    path = tmp_path / "code.zip"
    path.write_bytes(CONTENT)
    return Artifact(path=path, digest="d", size=len(CONTENT))


def put(
    nodes: Nodes, artifact: Artifact, copies: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[tuple[str, int, int]]]:
    monkeypatch.setattr(uploading, "ask", nodes.ask)
    told: list[tuple[str, int, int]] = []
    kept = upload(
        NETWORK, list(nodes.held), artifact, copies=copies, progress=lambda *each: told.append(each)
    )
    return kept, told


def test_pieces_are_put_one_after_the_other(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(a=b"")
    assert put(nodes, artifact, 1, monkeypatch) == (["a"], [("a", 4, 10), ("a", 8, 10), ("a", 10, 10)])
    assert nodes.puts == [("a", 0, b"0123"), ("a", 4, b"4567"), ("a", 8, b"89")]


def test_nodes_that_have_it_count_and_no_more_than_needed_get_it(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(a=b"", b=CONTENT, c=b"")
    assert put(nodes, artifact, 2, monkeypatch)[0] == ["b", "a"]
    assert {address for address, *_ in nodes.puts} == {"a"}


def test_an_upload_goes_on_where_it_stopped(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(a=b"01234")
    put(nodes, artifact, 1, monkeypatch)
    assert nodes.puts == [("a", 5, b"5678"), ("a", 9, b"9")]


@pytest.mark.parametrize("held", [b"01x34", b"x" * 10, b"x" * 12])
def test_what_a_node_has_that_is_wrong_is_put_anew(
    held: bytes, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(a=held)
    assert put(nodes, artifact, 1, monkeypatch)[0] == ["a"]
    assert nodes.held["a"] == CONTENT


def test_a_node_that_fails_is_passed_over_and_too_few_tell_every_reason(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(a=b"", b=b"", c=b"")
    nodes.fails = {"a"}
    assert put(nodes, artifact, 2, monkeypatch)[0] == ["b", "c"]
    nodes = Nodes(a=b"", b=b"")
    nodes.fails = {"a"}
    with pytest.raises(StrettoError, match=r"on 1 of the 2 nodes that it needs \(a: nothing answers\)"):
        put(nodes, artifact, 2, monkeypatch)
    with pytest.raises(StrettoError, match="on 0 of the 1 nodes that it needs; start more"):
        put(Nodes(), artifact, 1, monkeypatch)


def test_a_file_that_was_cut_short_is_told(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact.path.write_bytes(CONTENT[:6])
    nodes = Nodes(a=b"")
    with pytest.raises(StrettoError, match="ends before its 10 bytes; pack it again"):
        put(nodes, artifact, 1, monkeypatch)
    assert [offset for _, offset, _ in nodes.puts] == [0, 4]
