"""Snapshots with a seal: a SHA-256 before the content, over it and what it belongs to.

It finds damage and mix-ups (another spec, backend or num_envs). It is no protection against
somebody who makes a snapshot on purpose: whoever reads the content must still not execute it.
"""

from __future__ import annotations

import hashlib

_SIZE = hashlib.sha256().digest_size


def seal(identity: str, content: bytes) -> bytes:
    """The content behind its seal; ``identity`` names the only ones that may read it."""
    return _digest(identity, content) + content


def unseal(identity: str, data: bytes) -> bytes:
    """Inverse of :func:`seal`.

    Raises:
        ValueError: the data is damaged, or sealed under another identity.
    """
    content = data[_SIZE:]
    if data[:_SIZE] != _digest(identity, content):
        raise ValueError("the snapshot is damaged, or of another spec, backend or num_envs")
    return content


def _digest(identity: str, content: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(identity.encode()).digest() + content).digest()
