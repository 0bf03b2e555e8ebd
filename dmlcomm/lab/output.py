"""Lines of many processes in one stream, each with the name of who wrote it."""

import os
from typing import BinaryIO

CHUNK_BYTES = 1 << 16

# A line that never ends is passed on in parts of this size.
MAX_LINE_BYTES = 1 << 20


class PrefixedStream:
    """Copies what arrives at descriptor ``source`` to ``target``, whole lines with a prefix."""

    def __init__(self, source: int, target: BinaryIO, prefix: str) -> None:
        self._source = source
        self._target = target
        self._prefix = prefix.encode()
        self._rest = b""

    def copy(self) -> bool:
        """Copies what is there; False at the end."""
        data = os.read(self._source, CHUNK_BYTES)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > MAX_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        self._target.write(b"".join(self._prefix + line + b"\n" for line in lines))
        self._target.flush()
        return bool(data)
