"""Pong's backends by themselves, with random actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console

import envs
from envs.core import Array, Decision, VectorFunctionalEnv
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from envs.spaces import action_bounds, action_dtype
from scripts.bench_timing import count, interleave, paired_ratio, print_table

RAW, FIXED = "C vec_step, actions written", "C vec_step, fixed actions"
VIEWS, COPIES, JAX = "reference, views", "reference, copies", "jax"
# The least share of the raw rate that the wrapped reference must keep, by (envs, frameskip).
TARGETS = {(4096, 8): 0.8, (4096, 1): 0.6}


def bench_environment(
    console: Console, sizes: Sequence[int], frameskips: Sequence[int], steps: int, rounds: int
) -> dict[str, Any]:
    """Every size and frameskip; prints a table and returns its figures."""
    results, rows = [], []
    for frameskip in frameskips:
        for num_envs in sizes:
            with envs.make("pong", "reference", num_envs, frameskip=frameskip) as reference:
                runs = c_runs(reference, steps)
                port = envs.make("pong", "jax", num_envs, frameskip=frameskip)
                runs[JAX] = functional_run(port, steps)
                timed = interleave(runs, num_envs * steps, rounds)
            result = dict(envs=num_envs, frameskip=frameskip, steps=steps, runs=timed)
            results.append(result | _judged(result))
            for name, figures in timed.items():
                share = paired_ratio(figures, timed[RAW], "cpu")
                cells = [count(figures["cpu_rate"]), count(figures["rate"]), f"{share:.2f}"]
                rows.append(
                    [name, str(frameskip), str(num_envs), *cells, f"{figures['spread']:.0%}"]
                )
    columns = ["Pong, steps/s", "frameskip", "envs", "per CPU s", "wall", "of raw", "spread"]
    print_table(console, "Environment alone, random actions", columns, rows)
    for result in results:
        if "target" in result:
            word = "holds" if result["holds"] else "MISSED"
            console.print(
                f"frameskip {result['frameskip']}, {result['envs']} envs: reference (views) keeps "
                f"{result['kept']:.0%} of raw, target {result['target']:.0%}: {word}"
            )
    return dict(results=results)


def _judged(result: dict[str, Any]) -> dict[str, Any]:
    """Whether the wrapper's target holds; nothing where there is none."""
    target = TARGETS.get((result["envs"], result["frameskip"]))
    if target is None:
        return {}
    kept = paired_ratio(result["runs"][VIEWS], result["runs"][RAW], "cpu")
    return dict(kept=kept, target=target, holds=kept >= target)


def c_runs(env: Any, steps: int) -> dict[str, Callable[[], None]]:
    """``steps`` steps through the raw binding and through PongReference."""
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 3, env.num_envs, np.int32) for _ in range(32)]
    games, vec_step = env._games, env._module.vec_step
    env.reset(0)

    def raw() -> None:
        for i in range(steps):
            games.actions[:] = actions[i % 32]
            vec_step(games.handle)

    def fixed() -> None:
        for _ in range(steps):
            vec_step(games.handle)

    def loop(copy: bool) -> Callable[[], None]:
        def run() -> None:
            env.copy = copy
            for i in range(steps):
                env.step(actions[i % 32])

        return run

    return {RAW: raw, FIXED: fixed, VIEWS: loop(False), COPIES: loop(True)}


def functional_run(env: VectorFunctionalEnv, steps: int, seed: int = 0) -> Callable[[], None]:
    """``steps`` steps of a functional environment in one scan, actions and noise drawn inside."""
    spec, rows = env.spec, np.arange(env.num_envs, dtype=np.uint32)

    def one(carry: tuple, t: Array) -> tuple:
        state, decision = carry
        state, decision, outcome = env.step(
            state,
            random_actions(spec, decision, np.uint32(seed), t, jnp),
            draw_step_noise(spec, np.uint32(seed), t, rows, jnp),
            draw_reset_noise(spec, np.uint32(seed), t + 1, rows, jnp),
        )
        # Handed out, or XLA would leave out what nobody looks at.
        used = decision.observation.sum() + outcome.reward.sum() + outcome.terminated.sum()
        return (state, decision), used

    def play(carry: tuple, first: Array) -> tuple:
        return lax.scan(one, carry, first + jnp.arange(steps, dtype=jnp.uint32))

    start = env.reset(draw_reset_noise(spec, np.uint32(seed), 0, rows, jnp))
    held = [jax.tree.map(jnp.copy, start)]  # donated: every buffer once only
    program = jax.jit(play, donate_argnums=0).lower(held[0], np.uint32(0)).compile()
    played = [0]

    def run() -> None:
        held[0], used = program(held[0], np.uint32(played[0]))
        used.block_until_ready()
        played[0] += steps

    return run


def random_actions(spec: Any, decision: Decision, seed: Any, step: Any, xp: Any) -> Any:
    """Uniform actions ``[N(,A), ...]`` from the counter hash; legality is not looked at."""
    leading = decision.acting.shape
    rows = np.arange(int(np.prod(leading)), dtype=np.uint32)
    size = int(np.prod(spec.action_space.shape, dtype=int))
    u = draw_uniform(seed, step, rows, max(size, 1), stream=2, xp=xp)
    u = u.reshape(*leading, *spec.action_space.shape)
    low, high = action_bounds(spec.action_space)
    if action_dtype(spec.action_space).kind == "i":
        return (low + xp.floor(u * (high - low + 1))).astype(np.int32)
    return (low + u * (high - low)).astype(action_dtype(spec.action_space))
