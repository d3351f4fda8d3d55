"""Seals: what was sealed comes back, and nothing else does."""

import pytest

from envs.sealing import seal, unseal


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 9])
def test_round_trip(content):
    assert unseal("cartpole 3", seal("cartpole 3", content)) == content


SEALED = seal("cartpole 3", b"content")
BAD = {
    "empty": ("cartpole 3", b""),
    "unsealed": ("cartpole 3", b"content" * 9),
    "shortened": ("cartpole 3", SEALED[:-1]),
    "lengthened": ("cartpole 3", SEALED + b"0"),
    "another identity": ("cartpole 4", SEALED),
    "identity moved into the content": ("cartpole ", seal("cartpole ", b"3content")[:32] + b"3c"),
    **{f"bit of byte {i}": ("cartpole 3", SEALED[:i] + bytes([SEALED[i] ^ 1]) + SEALED[i + 1 :])
       for i in (0, 31, 32, len(SEALED) - 1)},
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_anything_else_is_refused(case):
    with pytest.raises(ValueError, match="the snapshot is damaged, or of another spec, backend"):
        unseal(*BAD[case])
