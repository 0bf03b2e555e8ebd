"""Checkpoint files of one server: written whole or not at all, and checked before they are used.

A file holds one model at one clock:

    magic            8 bytes, "DMLCPS" and the version of the format, two digits
    header length    4 bytes, little-endian
    header checksum  4 bytes, CRC-32 of the header
    header           JSON: server, model, clock, workers of the clock; when it was written, and
                     which clients were alive then (incarnation by worker); of each shard, its
                     steps; size and CRC-32 of each of its arrays, and of its pushes
    contents         of each shard its arrays, as the server's core gave them, and then the pushes
                     that they contain and that workers may repeat: piece, worker, incarnation and
                     sequence number, 8 bytes each, little-endian

Format 01 has no pushes, and is read, too.

It is written under another name, flushed to the disk, and renamed; then the directory is flushed.
So after a crash at any moment the file is complete, or not there. The last KEPT of a model stay.
Files that are not used, as they are damaged or of a clock that a server has gone back from, get the
suffix UNUSED, and stay until the next file of the model is written.
Files and folder are this user's alone. One server at a time has the folder: it holds a lock of it.
"""

import base64
import fcntl
import json
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmlcomm.errors import PsCheckpointError
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb

MAGIC = b"DMLCPS02"
READABLE = (MAGIC, b"DMLCPS01")
PREFIX = struct.Struct("<8sII")
MAX_HEADER_BYTES = 64 << 20
KEPT = 2
UNUSED = ".unused"

FILE_NAME = re.compile(r"model-(?P<model>[0-9a-f]{8})-clock-(?P<clock>\d{12})\.ckpt")

# Told while a file is read: the file, bytes that were checked, bytes of all arrays.
Progress = Callable[[Path, int, int], None]

# From one report of progress to the next; a slow disk reads it within a second.
CHUNK_BYTES = 64 << 20

# As the core gives and takes it: "shard" (number), "arrays", "steps" (updates by piece), "pushes".
Shard = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file. The arrays of the shards are views of the file.

    `incarnations`, by worker, are of the clients that were alive when it was written.
    """

    path: Path
    model: int
    description: Any
    clock: int
    workers: list[int]
    shards: list[Shard]
    unix_time: float
    incarnations: dict[int, int]


class CheckpointDirectory:
    """Checkpoints of server `server` of `num_servers`, in a directory of their own below `root`."""

    def __init__(self, root: str | Path, server: int, num_servers: int) -> None:
        self.path = Path(root) / f"server-{server}"
        self._server = server
        self._num_servers = num_servers
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        for left in self.path.glob("*.partial"):  # of a server that was killed while it wrote
            left.unlink()

    def _take_lock(self) -> int:
        """The kernel gives it back when the process ends, however that may be."""
        lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise PsCheckpointError(
                f"checkpoints in {self.path} are in use by another server {self._server}: "
                f"{error.strerror}; stop it, or give each job a --checkpoint of its own"
            ) from error
        return lock

    def close(self) -> None:
        """Gives the folder to the next server."""
        os.close(self._lock)

    def write(
        self,
        model: int,
        description: Any,
        clock: int,
        workers: Sequence[int],
        shards: Sequence[Shard],
        incarnations: Mapping[int, int],
    ) -> Path:
        """Writes one model, and removes all but the last KEPT of it, and what is not used.

        Raises OSError, as of a full disk: then nothing is left of it, and the others stay.
        """
        header = {
            "server": self._server,
            "num_servers": self._num_servers,
            "model": model,
            "name": description.name,
            "description": base64.b64encode(description.SerializeToString()).decode(),
            "clock": clock,
            "workers": list(workers),
            "unix_time": time.time(),
            "incarnations": dict(incarnations),
            "shards": [
                {
                    "shard": shard["shard"],
                    "steps": list(shard["steps"]),
                    "arrays": [_entry_of(array) for array in shard["arrays"]],
                    "pushes": _entry_of(shard["pushes"]),
                }
                for shard in shards
            ],
        }
        text = json.dumps(header).encode()
        path = self._path(model, clock)
        partial = path.with_suffix(".partial")
        try:
            with open(partial, "wb", opener=_open_for_this_user) as file:
                file.write(PREFIX.pack(MAGIC, len(text), zlib.crc32(text)))
                file.write(text)
                for shard in shards:
                    for content in (*shard["arrays"], shard["pushes"]):
                        file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        self._flush_names()
        for old in (*self._files_of(model)[KEPT:], *self._files_of(model, UNUSED)):
            old.unlink()
        return path

    def models(self) -> list[int]:
        names = [FILE_NAME.fullmatch(path.name) for path in self.path.iterdir()]
        return sorted({int(name["model"], 16) for name in names if name})

    def newest(
        self, model: int, progress: Progress | None = None
    ) -> tuple[Checkpoint, list[PsCheckpointError]]:
        """The newest file that is whole, and the errors of those that are newer: now unused.

        Raises PsCheckpointError if none is: without its weights a model must not start silently.
        """
        damaged: list[PsCheckpointError] = []
        for path in self._files_of(model):
            try:
                found = self.read(path, progress)
                self._set_aside_newer(model, found.clock)
                return found, damaged
            except PsCheckpointError as error:
                damaged.append(error)
        raise PsCheckpointError(
            "; ".join(map(str, damaged))
            + "; there is no older one; move the files away to start without them"
        )

    def clocks(self, model: int) -> list[int]:
        """Newest first; files are not read."""
        return [_clock_of(path) for path in self._files_of(model)]

    def go_back(self, model: int, clock: int) -> Checkpoint:
        """The checkpoint of this clock; newer ones are unused from now on.

        Raises PsCheckpointError: there is none that is whole, and nothing has changed.
        """
        found = self.read(self._path(model, clock))
        self._set_aside_newer(model, clock)
        return found

    def _set_aside_newer(self, model: int, clock: int) -> None:
        for path in self._files_of(model):
            if _clock_of(path) > clock:
                path.replace(path.with_suffix(UNUSED))
        self._flush_names()

    def _path(self, model: int, clock: int) -> Path:
        return self.path / f"model-{model:08x}-clock-{clock:012d}.ckpt"

    def read(self, path: Path, progress: Progress | None = None) -> Checkpoint:
        """Raises PsCheckpointError: the file is damaged, or of another server."""
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise _damaged(path, f"cannot be read: {error}") from error
        header, begin = _read_header(path, data)
        for key, mine in (("server", self._server), ("num_servers", self._num_servers)):
            if header[key] != mine:
                raise PsCheckpointError(
                    f"checkpoint {path} is of another server: {key} is {header[key]}, expected "
                    f"{mine}; start the servers as they were, or with another --checkpoint"
                )
        return Checkpoint(
            path=path,
            model=header["model"],
            description=pb.Model.FromString(base64.b64decode(header["description"])),
            clock=header["clock"],
            workers=header["workers"],
            shards=_read_shards(path, data[begin:], header["shards"], progress),
            # Files of before have neither.
            unix_time=header.get("unix_time", 0.0),
            incarnations={int(w): i for w, i in header.get("incarnations", {}).items()},
        )

    def _files_of(self, model: int, suffix: str = ".ckpt") -> list[Path]:
        """Newest first: the clock is part of the name."""
        return sorted(self.path.glob(f"model-{model:08x}-clock-*{suffix}"), reverse=True)

    def _flush_names(self) -> None:
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _clock_of(path: Path) -> int:
    name = FILE_NAME.fullmatch(path.name)
    assert name is not None
    return int(name["clock"])


def _entry_of(content: Any) -> dict[str, int]:
    return {"bytes": content.nbytes, "crc32": zlib.crc32(content)}


def _read_header(path: Path, data: memoryview) -> tuple[dict[str, Any], int]:
    if len(data) < PREFIX.size:
        raise _damaged(path, f"has {len(data)} bytes, less than any checkpoint")
    magic, length, checksum = PREFIX.unpack(data[: PREFIX.size])
    if magic not in READABLE:
        if magic[:6] == MAGIC[:6]:
            raise _damaged(path, f"is of format {magic!r}, this dmlcomm reads {MAGIC!r}")
        raise _damaged(path, f"is no checkpoint: begins with {magic!r} instead of {MAGIC!r}")
    begin = PREFIX.size + length
    if length > MAX_HEADER_BYTES or begin > len(data):
        raise _damaged(path, f"has {len(data)} bytes, its header alone would end at {begin}")
    text = data[PREFIX.size : begin]
    if zlib.crc32(text) != checksum:
        raise _damaged(path, "has a header whose checksum is wrong")
    header: dict[str, Any] = json.loads(bytes(text))
    return header, begin


def _read_shards(
    path: Path, data: memoryview, listed: Sequence[dict[str, Any]], progress: Progress | None
) -> list[Shard]:
    no_pushes = {"bytes": 0, "crc32": 0}  # of format 01
    entries = [[*shard["arrays"], shard.get("pushes", no_pushes)] for shard in listed]
    expected = sum(entry["bytes"] for of_shard in entries for entry in of_shard)
    if len(data) != expected:
        raise _damaged(path, f"has {len(data)} bytes of arrays, expected {expected}")
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(path, done, expected)

    shards = []
    for shard, of_shard in zip(listed, entries, strict=True):
        contents = []
        for number, entry in enumerate(of_shard):
            content, data = data[: entry["bytes"]], data[entry["bytes"] :]
            if _checksum(content, advance) != entry["crc32"]:
                where = f"array {number} of shard {shard['shard']}"
                raise _damaged(path, f"is damaged in {where}: the checksum is wrong")
            contents.append(content)
        *arrays, pushes = contents
        fields = {"shard": shard["shard"], "steps": shard["steps"]}
        shards.append(fields | {"arrays": arrays, "pushes": pushes})
    return shards


def _checksum(content: memoryview, advance: Callable[[int], None]) -> int:
    """CRC-32. This is what reads the file, whose memory is mapped: hence the reports."""
    checksum = 0
    for begin in range(0, len(content), CHUNK_BYTES):
        chunk = content[begin : begin + CHUNK_BYTES]
        checksum = zlib.crc32(chunk, checksum)
        advance(len(chunk))
    return checksum


def _open_for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _damaged(path: Path, what: str) -> PsCheckpointError:
    return PsCheckpointError(f"checkpoint {path} {what}")
