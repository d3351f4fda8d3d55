"""The rejax side of the training benchmark, as a child process in a virtual environment of its own.

    python bench_rejax.py '{"num_envs": 16, "num_steps": 32, ..., "iterations": 100}'

It compiles PPO on gymnax's CartPole, warms it up, prints one JSON line with ``compile_seconds``
and the versions, and then answers every line ``run`` on its input with one JSON line: the wall
``seconds`` of ``iterations`` further training iterations, without evaluation. It imports nothing
of this project.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import jax
from rejax import PPO


def make_program(config: dict[str, Any]) -> tuple[Any, Any]:
    """The first train state and the compiled program of ``iterations`` iterations."""
    iterations = config.pop("iterations")
    algorithm = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": config.pop("hidden")},
        **config,
    )
    state = jax.jit(algorithm.init_state)(jax.random.key(0))

    def run(state: Any) -> Any:
        return jax.lax.fori_loop(
            0, iterations, lambda _, state: algorithm.train_iteration(state), state
        )

    return state, jax.jit(run, donate_argnums=0).lower(state).compile()


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    started = time.perf_counter()
    state, program = make_program(json.loads(sys.argv[1]))
    seconds = time.perf_counter() - started
    state = jax.block_until_ready(program(state))
    versions = {name: version(name) for name in ("rejax", "gymnax", "jax", "flax", "optax")}
    answer({"compile_seconds": seconds, "versions": versions})
    for line in sys.stdin:
        if line.strip() != "run":
            sys.exit(f"bench_rejax: unknown request {line!r}")
        started = time.perf_counter()
        state = jax.block_until_ready(program(state))
        answer({"seconds": time.perf_counter() - started})


if __name__ == "__main__":
    main()
