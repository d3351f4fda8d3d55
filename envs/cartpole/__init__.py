"""CartPole: Gymnasium's CartPole-v1 and its twin; the smallest complete example of a room."""

from envs.cartpole.contract import make_spec
from envs.core import Backend

BACKENDS = {
    "reference": Backend(
        batched="envs.cartpole.reference:make_batched",
        simulator="envs.cartpole.reference:make_simulator",
    ),
    "jax": Backend(functional="envs.cartpole.jax_port:CartPole"),
}

__all__ = ["BACKENDS", "make_spec"]
