"""Pong: PufferLib's C code and its twins."""

from envs.core import Backend
from envs.pong.contract import make_spec

BACKENDS = {
    "reference": Backend(
        batched="envs.pong.reference:PongReference",
        simulator="envs.pong.reference:PongTape",
    ),
    "jax": Backend(functional="envs.pong.jax_port:Pong"),
}

__all__ = ["BACKENDS", "make_spec"]
