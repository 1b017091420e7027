"""The module code that a node keeps: archives named after their digest, whole or on their way.

    <digest>.zip             whole; its digest was right when it came, and is checked again at the first use
    <digest>.part            the beginning of one: an upload or a fetch goes on where it stopped
    <digest>/                unpacked, for who runs it
    damaged.<digest>.*       what no longer is what its name says, for people to look at

Nothing is believed but the digest: a part may come from anybody and may be anything, and becomes an artifact
only when all of it is there and hashes to its name. So repeated, overlapping and concurrent uploads do no
harm, and a node that serves garbage is passed over for the next one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias, assert_never

import structlog

from stretto import control
from stretto.artifact.archive import (
    ARTIFACT_BYTES_MAX,
    PIECE_BYTES,
    check_digest,
    digest_of,
    is_digest,
    is_unpacked,
    unpack,
)
from stretto.errors import PeerError, RetriableError, StrettoError, UsageError
from stretto.network.asking import ask_with_body
from stretto.network.routing import Network
from stretto.network.service import WithBody
from stretto.process.private_files import private_folder
from stretto.vocabulary.types import Buffer

PART_SECONDS_MAX = 24 * 60 * 60
"""Time after which a part that nobody has added to is given up."""
UNUSED_SECONDS = 60 * 60
"""How long code that no module uses is kept: somebody may be about to launch it."""
SHOWN_DIGITS = 12
"""Digits of a digest that are shown in sentences."""

log = structlog.get_logger()

ArtifactCall: TypeAlias = (
    control.HasArtifact | control.HeldOfArtifact | control.PutArtifact | control.GetArtifact
)


class ArtifactStore:
    """The archives of module code that a node keeps, in a folder of its own.

    All methods are safe from any thread, and may wait for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        #: Files whose digest was right, as (inode, size, time of change): checked again if one differs.
        self._verified: dict[str, tuple[int, int, int]] = {}
        #: When each was last asked for. Not remembered over restarts: then it counts from the first sweep.
        self._asked_at: dict[str, float] = {}
        #: Digests whose unpacked folder was found or made right by this process.
        self._unpacked: set[str] = set()
        private_folder(folder)
        self._tidy()

    def sweep(self, used: Collection[str], *, unused_seconds: float = UNUSED_SECONDS) -> list[str]:
        """Delete code that no module uses and nobody has asked for in that time; returns the digests."""
        gone = []
        for path in sorted(self._folder.glob("*.zip")):
            digest = path.stem
            if digest in used or not is_digest(digest):
                continue
            with self._locked(digest, asked=False):
                asked_at = self._asked_at.setdefault(digest, time.monotonic())
                if time.monotonic() - asked_at < unused_seconds:
                    continue
                path.unlink(missing_ok=True)
                shutil.rmtree(self._folder / digest, ignore_errors=True)
                self._unpacked.discard(digest)
                self._verified.pop(digest, None)
                del self._asked_at[digest]
            gone.append(digest)
            log.info("artifact_deleted", digest=digest)
        return gone

    def has(self, digest: str) -> bool:
        """Whether an artifact is here, whole and undamaged."""
        with self._locked(digest):
            return self._is_whole(digest)

    def held(self, digest: str) -> int:
        """How many bytes of an artifact are here, from its beginning."""
        with self._locked(digest):
            path = self._whole(digest) if self._is_whole(digest) else self._part(digest)
            return path.stat().st_size if path.exists() else 0

    def put(self, digest: str, offset: int, size: int, piece: Buffer) -> bool:
        """Keep a piece of an artifact of ``size`` bytes; True once the artifact is whole.

        Raises PeerError, and forgets the part, if all of it is there and is something else.
        """
        end = offset + len(piece)
        if not 0 < size <= ARTIFACT_BYTES_MAX:
            raise UsageError(f"an artifact has 1 to {ARTIFACT_BYTES_MAX:,} bytes, not {size:,}")
        if not 0 < len(piece) <= PIECE_BYTES or offset < 0 or end > size:
            raise UsageError(
                f"[{offset:,}, {end:,}) is no piece of an artifact of {size:,} bytes; "
                f"send {PIECE_BYTES:,} bytes at most"
            )
        with self._locked(digest):
            if self._is_whole(digest):
                return True
            held = self.held(digest)
            if offset > held:
                raise UsageError(
                    f"a piece begins at {offset:,}, but {held:,} bytes are here; go on from there"
                )
            try:
                _write(self._part(digest), offset, piece)
                if max(held, end) < size:
                    return False
                self._finish(digest)
            except OSError as error:
                why = f"artifact {_short(digest)} cannot be written here ({error.strerror}); mend that"
                raise StrettoError(why) from error
            return True

    def get(self, digest: str, offset: int) -> tuple[int, bytes]:
        """The size of a whole artifact, and a piece of it."""
        with self._locked(digest):
            if not self._is_whole(digest):
                raise StrettoError(f"artifact {_short(digest)} is not here; upload it")
            with self._whole(digest).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if not 0 <= offset < size:
                    raise UsageError(f"artifact {_short(digest)} has {size:,} bytes, and none at {offset:,}")
                return size, os.pread(file.fileno(), PIECE_BYTES, offset)

    def file(self, digest: str) -> Path:
        """The archive of an artifact."""
        with self._locked(digest):
            if not self._is_whole(digest):
                raise StrettoError(f"artifact {_short(digest)} is not here; upload it")
            return self._whole(digest)

    def path(self, digest: str) -> Path:
        """The folder that an artifact is unpacked in, to be imported from there."""
        with self._locked(digest):
            if not self._is_whole(digest):
                raise StrettoError(f"artifact {_short(digest)} is not here; upload it")
            folder = self._folder / digest
            if digest in self._unpacked and folder.is_dir():
                return folder
            if folder.exists() and not is_unpacked(self._whole(digest), folder):
                self._set_aside(folder, digest)
            if not folder.exists():
                unfinished = self._folder / f"{digest}.unpacking"
                shutil.rmtree(unfinished, ignore_errors=True)
                unpack(self._whole(digest), unfinished)
                unfinished.rename(folder)
            self._unpacked.add(digest)
            return folder

    def fetch(self, network: Network, digest: str, addresses: Sequence[str]) -> None:
        """Get an artifact from the first of these supervisors that has it; returns at once if it is here."""
        if self.has(digest):
            return
        reasons = []
        for address in addresses:
            began_at = self.held(digest)
            try:
                try:
                    self._copy(network, digest, address)
                except PeerError:
                    if not began_at:
                        raise
                    # What an earlier attempt left may be what was wrong, and is gone now.
                    self._copy(network, digest, address)
            except StrettoError as error:
                log.warning("artifact_not_fetched", digest=digest, peer=address, why=str(error))
                reasons.append(f"{address}: {error}")
            else:
                log.info("artifact_fetched", digest=digest, peer=address)
                return
        tried = "; ".join(reasons) or "no other node is known"
        raise RetriableError(f"artifact {_short(digest)} cannot be fetched ({tried}); upload it again")

    def handle(self, call: ArtifactCall, bodies: Sequence[memoryview]) -> object:
        """Answer calls about artifacts for a supervisor's :class:`~stretto.network.service.Service`."""
        match call:
            case control.HasArtifact(digest=digest):
                return self.has(digest)
            case control.HeldOfArtifact(digest=digest):
                return self.held(digest)
            case control.PutArtifact(digest=digest, offset=offset, size=size):
                if len(bodies) != 1:
                    raise UsageError(f"a piece of an artifact is one body, not {len(bodies)}")
                return self.put(digest, offset, size, bodies[0])
            case control.GetArtifact(digest=digest, offset=offset):
                whole, piece = self.get(digest, offset)
                return WithBody(whole, (piece,))
            case _:
                assert_never(call)

    def _copy(self, network: Network, digest: str, address: str) -> None:
        """Copy an artifact from a supervisor, going on after the part that is here.

        The first piece is asked for in any case: with it comes the size, by which a part is judged.
        """
        offset, held = 0, self.held(digest)
        while True:
            call = control.GetArtifact(digest=digest, offset=offset)
            size, bodies = ask_with_body(network, address, call)
            if len(bodies) != 1:
                raise PeerError(f"{len(bodies)} bodies came with a piece of an artifact")
            if self.put(digest, offset, size, bodies[0]):
                return
            offset = max(offset + len(bodies[0]), held)

    def _locked(self, digest: str, *, asked: bool = True) -> threading.RLock:
        check_digest(digest)
        with self._guard:
            if asked:
                self._asked_at[digest] = time.monotonic()
            return self._locks[digest]

    def _whole(self, digest: str) -> Path:
        return self._folder / f"{digest}.zip"

    def _part(self, digest: str) -> Path:
        return self._folder / f"{digest}.part"

    def _is_whole(self, digest: str) -> bool:
        path = self._whole(digest)
        try:
            found = _state_of(path)
        except FileNotFoundError:
            return False
        if self._verified.get(digest) == found:
            return True
        try:
            is_right = digest_of(path) == digest
        except OSError:
            is_right = False
        if is_right:
            self._verified[digest] = found
        else:
            self._set_aside(path, digest)
        return is_right

    def _finish(self, digest: str) -> None:
        part = self._part(digest)
        if digest_of(part) != digest:
            part.unlink()
            raise PeerError(f"what came is not artifact {_short(digest)}: its digest differs; send it again")
        _sync(part)
        part.rename(self._whole(digest))
        _sync(self._folder)
        self._verified[digest] = _state_of(self._whole(digest))
        log.info("artifact_kept", digest=digest)

    def _set_aside(self, path: Path, digest: str) -> None:
        aside = self._folder / f"damaged.{digest}.{secrets.token_hex(4)}"
        path.rename(aside)
        log.error("artifact_damaged", digest=digest, moved=str(aside))

    def _tidy(self) -> None:
        """Delete what an earlier process left unfinished, and nobody will finish."""
        for path in self._folder.glob("*.unpacking"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._folder.glob("*.part"):
            if time.time() - path.stat().st_mtime > PART_SECONDS_MAX:
                path.unlink()


def _short(digest: str) -> str:
    return digest[:SHOWN_DIGITS]


def _state_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write(path: Path, offset: int, piece: Buffer) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(piece)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(fd)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
