"""Fetches files from the homes of data sets: only when asked, checked by sha256, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from classmargin._atomic import atomic_path
from classmargin._progress import progress
from classmargin.data.errors import DataError, DataNotFoundError

_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that may be downloaded.

    Attributes:
        urls: Addresses of the same bytes, tried in order.
        sha256: Checksum of those bytes.
        target: Where the file goes, relative to the folder of the data set.
        members: For a tar archive, the members to unpack (by their path inside); the archive is not kept.
    """

    urls: tuple[str, ...]
    sha256: str
    target: str
    members: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What is there once it is fetched, relative to the folder."""
        return self.members or (self.target,)


def download_files(files: tuple[RemoteFile, ...], folder: Path) -> None:
    """Fetch every file that is not there yet into ``folder``.

    Raises:
        DataNotFoundError: no address answered.
        DataError: what came has another checksum; nothing is left behind.
    """
    for file in files:
        if not all((folder / name).is_file() for name in file.names):
            _fetch_first(file, folder)


def is_interrupted(files: tuple[RemoteFile, ...], folder: Path) -> bool:
    """Return whether some of the files are in ``folder`` and others are not."""
    there = [(folder / name).is_file() for file in files for name in file.names]
    return any(there) and not all(there)


def _fetch_first(file: RemoteFile, folder: Path) -> None:
    failures = []
    for url in file.urls:
        try:
            with atomic_path(folder / file.target) as temporary:
                _fetch(url, temporary, file.sha256)
                if file.members:
                    _unpack(temporary, file.members, folder)
            if file.members:
                (folder / file.target).unlink()
            return
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failures.append(f"{url}: {error}")
    raise DataNotFoundError(
        f"the download failed ({'; '.join(failures)}). Fetch it by hand and put it into {folder}"
    )


def _fetch(url: str, target: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, open(target, "wb") as out:
        length = answer.headers.get("Content-Length")
        steps = None if length is None else -(-int(length) // _CHUNK)
        for block in progress(_blocks(answer), f"downloading {url.rsplit('/', 1)[-1]}", total=steps):
            digest.update(block)
            out.write(block)
    if digest.hexdigest() != sha256:
        raise DataError(
            f"{url} gave a file with sha256 {digest.hexdigest()}, expected {sha256}; it is not kept"
        )


def _blocks(answer: BinaryIO) -> Iterator[bytes]:
    while block := answer.read(_CHUNK):
        yield block


def _unpack(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    # Only named regular files are copied out, so paths, links and modes inside the archive cannot do harm.
    with tarfile.open(archive) as tar:
        for name in members:
            content = tar.extractfile(name)
            if content is None:
                raise DataError(f"{archive.name} has no regular file {name}")
            with content, atomic_path(folder / name) as temporary, open(temporary, "wb") as out:
                shutil.copyfileobj(content, out)
