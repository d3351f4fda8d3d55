"""Speed of Pong's backends with random actions: million environment steps per CPU second.

    python scripts/pong_speed.py --envs 4096 --frameskip 8

``raw`` is the C code's own vec_step with the actions written to its buffer and nothing else; the
other rows are what users of the contract get. All are run in turn, several rounds, and the
medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import envs
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform


def c_loops(num_envs: int, frameskip: int, steps: int) -> dict[str, Callable[[], None]]:
    """``steps`` steps through the raw binding, and through PongReference, copying or not."""
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 3, num_envs, np.int32) for _ in range(32)]
    env = envs.make("pong", "reference", num_envs, frameskip=frameskip)
    env.reset(0)

    def raw() -> None:
        games, vec_step = env._games, env._module.vec_step
        for i in range(steps):
            games.actions[:] = actions[i % 32]
            vec_step(games.handle)

    def loop(copy: bool) -> Callable[[], None]:
        def run() -> None:
            env.copy = copy
            for i in range(steps):
                env.step(actions[i % 32])

        return run

    return {"raw": raw, "reference, copy=False": loop(False), "reference": loop(True)}


def jax_loop(num_envs: int, frameskip: int, steps: int) -> Callable[[], None]:
    """The port in one scan, actions and noise drawn inside."""
    env = envs.make("pong", "jax", num_envs, frameskip=frameskip)
    rows = jnp.arange(num_envs, dtype=jnp.uint32)

    def step(state: Any, number: Any) -> tuple[Any, Any]:
        uniform = draw_uniform(0, number, rows, xp=jnp)[:, 0]
        step_noise = draw_step_noise(env.spec, 0, number, rows, jnp)
        reset_noise = draw_reset_noise(env.spec, 0, number + 1, rows, jnp)
        action = jnp.minimum((uniform * 3).astype(jnp.int32), 2)
        state, decision, outcome = env.step(state, action, step_noise, reset_noise)
        used = decision.observation.sum() + outcome.reward.sum() + outcome.terminated.sum()
        return state, used  # so that XLA leaves nothing out

    play = jax.jit(lambda state, numbers: lax.scan(step, state, numbers), donate_argnums=0)
    state, _ = env.reset(draw_reset_noise(env.spec, 0, 0, rows, jnp))
    held = [state]

    def run() -> None:
        held[0], used = play(held[0], np.arange(steps, dtype=np.uint32))
        used.block_until_ready()

    run()  # compiles
    return run


def measure(num_envs: int, frameskip: int, steps: int, rounds: int) -> dict[str, float]:
    """Median million environment steps per CPU second, by name."""
    loops = c_loops(num_envs, frameskip, steps)
    loops["jax"] = jax_loop(num_envs, frameskip, steps)
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            began = time.process_time()
            run()
            rates[name].append(num_envs * steps / (time.process_time() - began) / 1e6)
    return {name: statistics.median(values) for name, values in rates.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--frameskip", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=200, help="steps of each round")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(argv)
    try:
        for frameskip in args.frameskip:
            for num_envs in args.envs:
                rates = measure(num_envs, frameskip, args.steps, args.rounds)
                row = ", ".join(
                    f"{name} {rate:.1f} ({rate / rates['raw']:.2f} of raw)"
                    for name, rate in rates.items()
                )
                print(f"frameskip {frameskip}, {num_envs} environments: {row}", flush=True)
    except (envs.MissingDependency, ValueError) as error:
        print(f"pong speed: {error}", file=sys.stderr)
        return 6
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
