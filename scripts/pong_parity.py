"""Plays Pong's JAX port and PufferLib's C code side by side and counts every bit that differs.

    python scripts/pong_parity.py --steps 1e7 --json parity.json

The port plays a chunk of steps inside one jitted program and writes down its actions and noise;
the C code (the tape build) is then given the same. Exit codes: 0 equal, 2 a difference, 6 the C
code is not built.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import envs
from envs.core import Decision, EnvSpec, Outcome
from envs.noise import draw_reset_noise, draw_step_noise, draw_uniform
from envs.pong.contract import DOWN, STAY, UP

CHUNK_ROWS = 2**17  # environment steps that are compared at a time
POLICIES = ("random", "tracking")


@dataclass
class Case:
    """One comparison: what is played, and what came out."""

    policy: str
    num_envs: int
    steps: int  # of each environment
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    games: int = 0
    points: int = 0
    agent_hits: int = 0
    compared: int = 0  # environment steps so far
    mismatches: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        return self.compared > 0 and not any(self.mismatches.values())


def choose(policy: str, observation: Any, uniform: Any) -> Any:
    """Actions ``[N]`` int32 from observations ``[N, 8]`` and uniform numbers ``[N, 2]``.

    "tracking" follows the ball and plays one action in eight at random, so that hits are sliced
    and rallies end.
    """
    anything = jnp.minimum((uniform[:, 0] * 3).astype(jnp.int32), 2)
    if policy == "random":
        return anything
    paddle, ball = observation[:, 1], observation[:, 3]  # both are 0.5 or close in the middle
    follow = jnp.where(ball > paddle + 0.02, UP, jnp.where(ball < paddle - 0.02, DOWN, STAY))
    return jnp.where(uniform[:, 1] < 1 / 8, anything, follow)


def port_chunks(spec: EnvSpec, case: Case, length: int) -> Iterator[dict[str, Any]]:
    """The port's side: dicts of ``[T, N, ...]`` arrays, one per chunk of ``length`` steps."""
    env = envs.make("pong", "jax", case.num_envs, **case.parameters)
    rows = jnp.arange(case.num_envs, dtype=jnp.uint32)

    def step(carry: Any, number: Any) -> tuple[Any, dict[str, Any]]:
        state, decision = carry
        step_noise = draw_step_noise(spec, case.seed, number, rows, jnp)
        reset_noise = draw_reset_noise(spec, case.seed, number + 1, rows, jnp)
        uniform = draw_uniform(case.seed, number, rows, count=2, xp=jnp)
        action = choose(case.policy, decision.observation, uniform)
        state, decision, outcome = env.step(state, action, step_noise, reset_noise)
        played = dict(action=action, step=step_noise, reset=reset_noise, events=outcome.events)
        return (state, decision), played | dict(seen=seen(env.state_fields(state), outcome))

    play = jax.jit(lambda carry, numbers: lax.scan(step, carry, numbers))
    carry = jax.jit(env.reset)(draw_reset_noise(spec, case.seed, 0, rows, jnp))
    for first in range(0, case.steps, length):
        numbers = np.arange(first, min(first + length, case.steps), dtype=np.uint32)
        carry, chunk = play(carry, numbers)
        yield jax.tree.map(np.asarray, chunk)


def seen(fields: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Everything that is compared, by name; the observation is one of the state's fields."""
    assert isinstance(outcome.final, Decision)
    return dict(
        **{f"state.{name}": value for name, value in fields.items()},
        **{f"metrics.{name}": value for name, value in outcome.metrics.items()},
        **{"final.observation": outcome.final.observation},
        reward=outcome.reward,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
    )


def differing(name: str, port: np.ndarray, reference: np.ndarray, ended: np.ndarray) -> int:
    """Entries whose bits differ, in ``[T, N, ...]``; final and metrics count where games ended."""
    if port.dtype != reference.dtype or port.shape != reference.shape:
        raise TypeError(
            f"{name}: {port.dtype}{port.shape} against {reference.dtype}{reference.shape}"
        )
    if port.dtype == np.float32:  # bits, so that -0 is not 0
        port, reference = port.view(np.uint32), reference.view(np.uint32)
    unequal = port != reference
    if name.startswith(("final.", "metrics.")):
        unequal = unequal[ended]
    return int(unequal.sum())


def compare(case: Case, advance: Callable[[int], Any] = lambda steps: None) -> Case:
    """Play the case; fills in and returns it. ``advance`` is told of compared environment steps."""
    began = time.perf_counter()
    spec = envs.make_spec("pong", **case.parameters)
    rows = np.arange(case.num_envs, dtype=np.uint32)
    hit = spec.events.index("hit_right")
    length = max(1, min(case.steps, CHUNK_ROWS // case.num_envs))
    tape = envs.make("pong", "reference", case.num_envs, interface="simulator", **case.parameters)
    with tape:
        tape.reset(draw_reset_noise(spec, case.seed, 0, rows))
        for chunk in port_chunks(spec, case, length):
            port = chunk["seen"]
            reference = {name: np.empty_like(values) for name, values in port.items()}
            draws = np.empty(chunk["action"].shape, np.int32)
            for t, action in enumerate(chunk["action"]):
                noises = (
                    type(n)(*(site[t] for site in n)) for n in (chunk["step"], chunk["reset"])
                )
                decision, outcome = tape.step(action, *noises)
                fields = tape.get_state()
                assert fields["observation"].tobytes() == decision.observation.tobytes()
                for name, value in seen(fields, outcome).items():
                    reference[name][t] = value
                draws[t] = tape.taps()["draws"]
            ended = reference["terminated"]
            counts = {n: differing(n, port[n], reference[n], ended) for n in port}
            points = np.abs(reference["reward"]) == 1
            counts["draws"] = int((draws != points).sum())  # one for each point, none otherwise
            case.mismatches = {n: case.mismatches.get(n, 0) + k for n, k in counts.items()}
            case.games += int(ended.sum())
            case.points += int(points.sum())
            case.agent_hits += int(chunk["events"][..., hit].sum())
            case.compared += ended.size
            advance(ended.size)
    case.seconds = time.perf_counter() - began
    return case


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="1e7", help="environment steps over all cases")
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--frameskip", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parsed = parser.parse_args(argv)
    try:
        parsed.steps = int(float(parsed.steps))
    except (ValueError, OverflowError):
        parser.error(f"--steps must be a number, got {parsed.steps!r}")
    if parsed.steps < 1 or parsed.envs < 1:
        parser.error("--steps and --envs must be positive")
    return parsed


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    kinds = [(frameskip, policy) for frameskip in args.frameskip for policy in args.policy]
    steps = -(-args.steps // (len(kinds) * args.envs))
    cases = [Case(p, args.envs, steps, args.seed, {"frameskip": f}) for f, p in kinds]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeRemainingColumn(), transient=True) as progress:
            for case in cases:
                label = f"frameskip {case.parameters['frameskip']} {case.policy}"
                bar = progress.add_task(label, total=case.steps * case.num_envs)
                compare(case, partial(progress.advance, bar))
    except (envs.MissingDependency, ValueError) as error:
        print(f"pong parity: {error}", file=sys.stderr)
        return 6
    for case in cases:
        wrong = {name: count for name, count in case.mismatches.items() if count}
        print(
            f"frameskip {case.parameters['frameskip']} {case.policy}: {case.compared:,} steps, "
            f"{case.points:,} points, {case.games:,} games, {case.agent_hits:,} steps with a hit, "
            f"{case.seconds:.1f} s; mismatches: {wrong or 0}"
        )
    equal = all(case.equal for case in cases)
    if args.json:
        record = dict(equal=equal, cases=[asdict(case) for case in cases])
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    total = sum(case.compared for case in cases)
    names = ", ".join(cases[0].mismatches)
    print(f"{total:,} environment steps, {'equal to the last bit' if equal else 'NOT EQUAL'}")
    print(f"compared in each: {names}")
    return 0 if equal else 2


if __name__ == "__main__":
    raise SystemExit(main())
