"""Training speed: CartPole against rejax, Pong's backends under the same policy and batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

import envs
from scripts.bench_peers import ROOT, Peer, peer_python
from scripts.bench_timing import count, interleave, paired_ratio, print_table
from train.config import PPOConfig, RunConfig, parse_run
from train.env_share import NullBatched, NullEnv
from train.host_loop import HostTrainer
from train.policies.policy import MLPPolicy
from train.ppo_jax import PPO, FusedTrainer
from verification.statistics import share_interval

REJAX_SCRIPT = Path(__file__).with_name("bench_rejax.py")
OURS, REJAX, REJAX_DEFAULT = "ours", "rejax", "rejax, default XLA flags"


def run_config(*overrides: str) -> RunConfig:
    """The project's own configuration, as ``train/main.py`` would read it."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    return parse_run(cast(dict[str, Any], composed))


def fused_run(ppo: PPO, env: Any, updates: int) -> tuple[Callable[[], None], float]:
    """``updates`` updates of the fused trainer, and the seconds that compiling took."""
    started = time.perf_counter()
    trainer = FusedTrainer(ppo, env)
    held = [trainer.init(0)]
    program = trainer.compile(held[0])

    def run() -> None:
        held[0] = jax.block_until_ready(program(held[0], np.int32(updates)))[0]

    return run, time.perf_counter() - started


def host_run(trainer: HostTrainer, updates: int) -> Callable[[], None]:
    """``updates`` updates of the host loop."""

    def run() -> None:
        trainer.chunk(updates)

    return run


# --- CartPole against rejax -------------------------------------------------------------------


def bench_cartpole(
    console: Console, sizes: Sequence[int], steps: int, rounds: int, with_rejax: bool
) -> dict[str, Any]:
    """Both trainers in the same configuration; prints a table and returns its figures."""
    python = peer_python() if with_rejax else None
    results, rows = [], []
    for num_envs in sizes:
        config = run_config("env=cartpole", f"num_envs={num_envs}", "schedule=constant")
        result = _train_cartpole(config, steps, rounds, python)
        results.append(result)
        timed = result["runs"]
        for name, figures in timed.items():
            ratio = f"{paired_ratio(timed[OURS], figures):.2f}"
            cells = [count(figures["rate"]), ratio, f"{figures['spread']:.0%}"]
            rows.append([name, str(num_envs), *cells, f"{result['compile_seconds'][name]:.1f}"])
    columns = ["CartPole, PPO", "envs", "steps/s", "ours is x times as fast", "spread", "compile s"]
    print_table(console, "Training, no evaluation, compilation apart", columns, rows)
    for result in results:
        if "ratio" in result:
            low, high = result["ratio_ci95"]
            console.print(
                f"{result['envs']} envs: {result['ratio']:.2f} ({low:.2f} .. {high:.2f}) times as "
                f"fast as rejax, target 1.0: {verdict(low, high, 1.0)}"
            )
    return dict(results=results)


def _train_cartpole(
    config: RunConfig, steps: int, rounds: int, python: Path | None
) -> dict[str, Any]:
    updates = max(1, round(steps / config.steps_per_update))
    env = envs.make("cartpole", "jax", config.ppo.num_envs)
    ppo = PPO(env.spec, MLPPolicy(env.spec, config.model), config.ppo, config.num_updates)
    ours, compile_seconds = fused_run(ppo, env, updates)
    runs: dict[str, Callable[[], float | None]] = {OURS: ours}
    compiled = {OURS: compile_seconds}
    result: dict[str, Any] = dict(envs=config.ppo.num_envs, updates=updates)
    with ExitStack() as stack:
        if python is not None:
            peer_config = dict(rejax_config(config), iterations=updates)
            flags = {REJAX: os.environ.get("XLA_FLAGS", ""), REJAX_DEFAULT: ""}
            for name, value in flags.items():
                peer = stack.enter_context(Peer(python, REJAX_SCRIPT, peer_config, value))
                runs[name], compiled[name] = peer.run, peer.announced["compile_seconds"]
                result["peer_versions"] = peer.announced["versions"]
            result["peer_config"] = peer_config
        timed = interleave(runs, updates * config.steps_per_update, rounds)
    if REJAX in timed:
        saved = share_interval(timed[REJAX]["wall_seconds"], timed[OURS]["wall_seconds"])
        result["ratio"] = 1.0 / (1.0 - saved.estimate)
        result["ratio_ci95"] = [1.0 / (1.0 - saved.low), 1.0 / (1.0 - saved.high)]
    return dict(result, compile_seconds=compiled, runs=timed)


def verdict(low: float, high: float, target: float) -> str:
    """What an interval says about reaching a target."""
    if low >= target:
        return "holds"
    return "MISSED" if high < target else "not decided by this run"


def rejax_config(config: RunConfig) -> dict[str, Any]:
    """The same configuration in rejax's names.

    What can't be made equal: rejax clips gradients per element and ours by global norm; rejax
    clips the value loss and has an optimiser for each network; rejax shuffles single samples and
    ours permutes environments (equally many samples per minibatch); ours bootstraps from
    truncated episodes, counts them and reports the losses.
    """
    c: PPOConfig = config.ppo
    return dict(
        num_envs=c.num_envs,
        num_steps=c.horizon,
        num_minibatches=c.num_minibatches,
        num_epochs=c.epochs,
        learning_rate=c.learning_rate,
        gamma=c.gamma,
        gae_lambda=c.gae_lambda,
        clip_eps=c.clip_eps,
        ent_coef=c.ent_coef,
        vf_coef=c.vf_coef,
        max_grad_norm=c.max_grad_norm,
        hidden=[config.model.width] * config.model.depth,
    )


# --- Pong -------------------------------------------------------------------------------------


def bench_pong_training(
    console: Console, models: Sequence[str], num_envs: int, steps: int, rounds: int
) -> dict[str, Any]:
    """Port and reference, fused and host loop, each beside its null environment."""
    results, rows = [], []
    for model in models:
        config = run_config("env=pong", f"model={model}", f"num_envs={num_envs}")
        result = _train_pong(config, steps, rounds)
        results.append(result)
        slowest = result["runs"]["C reference, host loop"]
        for name, share in result["shares"].items():
            figures = result["runs"][name]
            times = f"{paired_ratio(figures, slowest):.2f}"
            cells = [count(figures["rate"]), times, f"{figures['spread']:.0%}"]
            low, high = share["ci95"]
            cells += [f"{share['share']:.1%}", f"{low:.1%} .. {high:.1%}"]
            rows.append([name, model, *cells])
    columns = ["Pong, PPO", "model", "steps/s", "of C's speed", "spread", "environment", "95 %"]
    print_table(console, f"Training, {num_envs} envs, by environment and loop", columns, rows)
    return dict(results=results)


def _train_pong(config: RunConfig, steps: int, rounds: int) -> dict[str, Any]:
    updates = max(1, round(steps / config.steps_per_update))
    c = config.ppo
    spec = envs.make_spec(config.env, **config.parameters)
    ppo = PPO(spec, MLPPolicy(spec, config.model), c, config.num_updates)
    with ExitStack() as stack:
        candidates = dict(_pong_candidates(config, ppo, updates, stack))
        runs: dict[str, Callable[[], None]] = {}
        for name, (real, null) in candidates.items():
            runs[name], runs[f"{name}, null"] = real, null
        timed = interleave(runs, updates * config.steps_per_update, rounds)
    shares = {name: _share(timed[name], timed[f"{name}, null"]) for name in candidates}
    return dict(
        model=config.model.name, envs=c.num_envs, updates=updates, runs=timed, shares=shares
    )


def _pong_candidates(
    config: RunConfig, ppo: PPO, updates: int, stack: ExitStack
) -> Iterator[tuple[str, tuple[Callable[[], None], Callable[[], None]]]]:
    """Name -> (with the environment, with a null one in its place)."""
    name, size, parameters = config.env, config.ppo.num_envs, config.parameters
    port = envs.make(name, "jax", size, **parameters)
    null = NullEnv(port)
    yield "jax, fused", (fused_run(ppo, port, updates)[0], fused_run(ppo, null, updates)[0])
    for label, backend in (("C reference", "reference"), ("jax", "jax")):
        env = stack.enter_context(envs.make(name, backend, size, interface="batched", **parameters))
        trainer = HostTrainer(ppo, env, 0)
        null_trainer = HostTrainer(ppo, NullBatched(env, trainer.decision), 0)
        pair = host_run(trainer, updates), host_run(null_trainer, updates)
        yield f"{label}, host loop", pair


def _share(real: dict[str, Any], null: dict[str, Any]) -> dict[str, Any]:
    """The environment's share of the time with its interval."""
    interval = share_interval(real["wall_seconds"], null["wall_seconds"])
    return dict(
        share=interval.estimate,
        ci95=[interval.low, interval.high],
        below_noise=interval.covers_zero or interval.estimate < 0.0,
    )
