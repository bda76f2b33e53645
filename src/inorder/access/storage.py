"""The file of users and rules: `inorder/access.json` in a data directory.

    write access.json.tmp, sync; rename it over access.json; sync the directory

A crash at any point leaves the old file or the new one. There is no copy of the one before: it
would bring back users who were deleted. The file is readable by its owner alone, and one that
others may read or that is a link is refused. A name server has its file in its own directory.

With a key, secrets are encrypted in the file (AES-256-GCM, package `cryptography`). The key comes
from a file outside of the data directory, so a backup of the data shows no secret. Without one they
stand there as they are, because RocketMQ's signature needs them. Why: decision 55.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inorder.access.records import SEALED, Seal, Unseal, decode_book, encode_book, plain, unplain
from inorder.errors import ConfigError, RemoteProtocolError, StoreError

if TYPE_CHECKING:
    from inorder.access.rules import Book
    from inorder.disk import FileInfo, Files

NAME: Final = "access.json"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
unpredictable: Final = os.urandom
"""Random bytes that nobody can guess: nonces, sessions, new secrets."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def new_secret() -> str:
    """Return a secret that nobody can guess."""
    return unpredictable(16).hex()


class AccessFile:
    """The file, and how secrets are written in it."""

    def __init__(
        self, files: Files, path: Path, *, seal: Seal = plain, unseal: Unseal = unplain
    ) -> None:
        self._files = files
        self._seal = seal
        self._unseal = unseal
        self.path = path
        self._draft = path.with_name(path.name + ".tmp")
        self._directory_is_durable = False

    def __repr__(self) -> str:
        return f"AccessFile({str(self.path)!r})"

    @property
    def is_sealed(self) -> bool:
        """Return whether secrets are encrypted in the file."""
        return self._seal is not plain

    def look(self) -> FileInfo | None:
        """Return what tells whether the file was replaced; None: there is none."""
        try:
            return self._files.info(self.path)
        except FileNotFoundError:
            return None

    def load(self) -> Book | None:
        """Return the content; None: there is no file.

        Raises:
            StoreError: it cannot be read, is not a file of ours, or others may read it.
        """
        try:
            info = self._files.info(self.path)
        except FileNotFoundError:
            return None
        if info.mode & _OTHERS:
            raise StoreError(
                f"{self.path} holds secrets and others may read it (mode {info.mode & 0o777:o}); "
                f"chmod 600 {self.path}"
            )
        try:
            file = self._files.open(self.path)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read ({error.strerror}); it must be a plain file of this "
                "user, no link"
            ) from None
        try:
            size = file.size()
            if size > FILE_BYTES_MAX:
                raise StoreError(f"{self.path} has {size} bytes; at most {FILE_BYTES_MAX} are read")
            content = file.pread(size, 0)
        finally:
            file.close()
        try:
            return decode_book(content, self._unseal)
        except RemoteProtocolError as error:
            raise StoreError(f"{self.path}: {error}") from None

    def save(self, book: Book) -> None:
        """Replace the content; it is on disk when this returns.

        Raises:
            OSError: the old content counts, or the new one if only the directory is not synced.
        """
        content = encode_book(book, self._seal)
        if not self._directory_is_durable:  # also one that a killed run has just made
            self._files.makedirs(self.path.parent)
            self._files.fsync_dir(self.path.parent.parent)
            self._directory_is_durable = True
        self._files.remove(self._draft)
        file = self._files.open(self._draft, create=True)
        try:
            file.pwrite(content, 0)
            file.fdatasync()
        finally:
            file.close()
        self._files.rename(self._draft, self.path)
        self._files.fsync_dir(self.path.parent)


def open_file(files: Files, path: Path, key_file: str) -> AccessFile:
    """Return the file, with the key if one is set. Raises ConfigError."""
    if not key_file:
        return AccessFile(files, path)
    key = _read_key(files, Path(key_file), path)
    seal, unseal = sealing(key, unpredictable)
    return AccessFile(files, path, seal=seal, unseal=unseal)


def _read_key(files: Files, path: Path, access: Path) -> bytes:
    where = f"access.key_file {path}"
    if path.absolute().is_relative_to(access.parent.absolute()):
        raise ConfigError(f"{where} lies beside the secrets; keep the key outside of the data")
    try:
        info = files.info(path)
        file = files.open(path)
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    try:
        text = file.pread(1024, 0).strip()
    finally:
        file.close()
    if info.mode & _OTHERS:
        raise ConfigError(f"{where} can be read by others; chmod 600 it")
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{where} is no key; make one with: openssl rand -hex {KEY_BYTES}")
    return key


def sealing(key: bytes, draw: Callable[[int], bytes]) -> tuple[Seal, Unseal]:
    """Return the functions that encrypt and decrypt secrets; the name of the user is bound in."""
    cipher = _cipher(key)

    def seal(name: str, secret: bytes) -> str:
        nonce = draw(_NONCE_BYTES)
        sealed: bytes = nonce + cipher.encrypt(nonce, secret, name.encode())
        return SEALED + base64.b64encode(sealed).decode()

    def unseal(name: str, text: str) -> bytes:
        if not text.startswith(SEALED):
            return text.encode()  # written before there was a key; the next change encrypts it
        try:
            data = base64.b64decode(text.removeprefix(SEALED), validate=True)
            secret: bytes = cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name.encode())
        except (binascii.Error, ValueError, _invalid_tag()):
            raise RemoteProtocolError(
                f"the secret of {name} was not encrypted with the key of access.key_file"
            ) from None
        return secret

    return seal, unseal


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "access.key_file needs the package cryptography: pip install 'inorder[sealed]'"
        ) from None
    return AESGCM(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
