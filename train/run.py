"""One training run: train, save, evaluate on every backend, judge the gap, write it all down."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import yaml
from rich.console import Console

import envs
from envs.batched import BatchedEnv
from envs.core import EnvSpec
from train.backends import Judged, evaluate_backends, evaluate_on
from train.checkpoint import TrainedPolicy, save_policy, write_atomically
from train.config import ConfigError, RunConfig
from train.episodes import EpisodeTotals, summarize
from train.loops import Loop, make_loop
from train.machine import machine, peak_memory_gb
from train.metrics import RunLogger
from train.pictures import plot_learning_curve, record_game
from train.policies.policy import MLPPolicy, count_parameters
from train.ppo_jax import PPO, LearnerState


class TrainingError(RuntimeError):
    """Training can't go on: invalid actions or numbers that are not finite."""


class Run:
    """A run and its folder.

    ``execute`` does everything and returns the summary, which also lies in summary.json; its
    ``status`` is "running", "finished", "interrupted" or "failed".
    """

    def __init__(self, config: RunConfig, raw: Mapping[str, Any], console: Console) -> None:
        self.config, self.raw, self.console = config, raw, console
        device = "gpu" if jax.default_backend() == "gpu" else "cpu"
        self.spec: EnvSpec = envs.make_spec(config.env, **config.parameters)
        self.backend = envs.resolve_backend(config.env, config.backend, device)
        _check_metric(self.spec, config)
        self.policy = MLPPolicy(self.spec, config.model)
        self.ppo = PPO(self.spec, self.policy, config.ppo, config.num_updates)
        self.env = envs.make(config.env, self.backend, config.ppo.num_envs, **config.parameters)
        self.dir = _make_run_dir(config, self.backend)
        self.notes: list[str] = []
        self.summary: dict[str, Any] = dict(
            status="running",
            env=config.env,
            parameters=dict(self.spec.parameters),
            contract=self.spec.digest,
            backend=self.backend,
            trainer=config.trainer,
            model=config.model.name,
            policy_parameters=count_parameters(jax.eval_shape(self.policy.init, 0)),
            seed=config.seed,
            machine=machine(),
            train={},
            eval={},
            notes=self.notes,
        )

    def execute(self) -> dict[str, Any]:
        """The whole run. KeyboardInterrupt passes through after the folder was left readable."""
        text = yaml.safe_dump(json.loads(json.dumps(self.raw)), sort_keys=False)
        write_atomically(self.dir / "config.yaml", text.encode())
        self._write_summary()
        wandb = self.config.wandb if self.config.logger == "wandb" else None
        try:
            total = self.config.num_updates * self.config.steps_per_update
            with RunLogger(self.dir, total, self.console, wandb, self.raw) as logger:
                trained = self._train(logger)
                logger.pause()
                self._judge(trained)
                self._draw(trained)
                self.summary["status"] = "finished"
                logger.summarize(_flatten(self.summary))
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.summary["status"] = "interrupted" if interrupted else "failed"
            self.summary["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write_summary()
            if isinstance(self.env, BatchedEnv):
                self.env.close()
        return self.summary

    # --- training ---------------------------------------------------------------------------

    def _train(self, logger: RunLogger) -> TrainedPolicy:
        config = self.config
        loop = make_loop(self.ppo, self.env, config)
        chunks = _chunk_sizes(config)
        checkpoint_every = config.updates_between(config.checkpoint_every)
        eval_every = config.updates_between(config.evaluation.every)
        updates, started = 0, time.perf_counter()
        learner: LearnerState | None = None
        try:
            for size in chunks:
                learner, metrics, totals = loop.advance(size)
                updates += size
                self._log(logger, loop, updates, metrics, totals)
                if checkpoint_every and updates % checkpoint_every == 0:
                    steps = updates * config.steps_per_update
                    name = f"policy_{steps:012d}.safetensors"
                    save_policy(self.dir / "checkpoints" / name, self._trained(learner))
                if eval_every and updates % eval_every == 0:
                    self._evaluate_midway(logger, updates, self._trained(learner))
        finally:
            if learner is not None:
                save_policy(self.dir / "policy.safetensors", self._trained(learner))
            self.summary["train"].update(
                env_steps=updates * config.steps_per_update,
                updates=updates,
                seconds=time.perf_counter() - started,
                steps_per_second=loop.steps_per_second,
                compile_seconds=loop.compile_seconds,
                peak_memory_gb=peak_memory_gb(),
            )
        if config.measure_env_share:
            self.console.print("measuring the environment's share of training time ...")
            self.summary["train"].update(loop.share())
        assert learner is not None
        return self._trained(learner)

    def _log(
        self,
        logger: RunLogger,
        loop: Loop,
        updates: int,
        metrics: Mapping[str, float],
        totals: EpisodeTotals,
    ) -> None:
        episodes = summarize(totals)
        logger.log(
            updates * self.config.steps_per_update,
            {
                **{f"episodes/{k}": v for k, v in episodes.items()},
                **{f"loss/{k}": v for k, v in metrics.items()},
                **{f"time/{k}": v for k, v in loop.time_split().items()},
                "time/steps_per_second": loop.steps_per_second,
            },
            _status(self.config, loop, episodes),
        )
        if int(totals.invalid):
            raise TrainingError(f"{int(totals.invalid)} invalid actions reached {self.spec.name}")
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(
                f"the loss is {metrics['loss']} after {updates} updates; "
                "a smaller learning_rate usually helps"
            )

    def _evaluate_midway(self, logger: RunLogger, updates: int, trained: TrainedPolicy) -> None:
        interface = "batched" if self.backend == "reference" else "simulator"
        results = evaluate_on(
            trained, self.backend, interface, self.config.evaluation, self.console
        )
        means = {
            f"eval/{name}": value
            for name, value in results.summary().items()
            if isinstance(value, (int, float))
        }
        logger.log(updates * self.config.steps_per_update, means, "evaluating")

    def _trained(self, learner: LearnerState) -> TrainedPolicy:
        return TrainedPolicy(
            self.spec, self.policy, jax.device_get(learner.params), learner.statistics
        )

    # --- afterwards -------------------------------------------------------------------------

    def _judge(self, trained: TrainedPolicy) -> None:
        judged: Judged = evaluate_backends(
            trained, self.backend, self.config.evaluation, self.config.gap, self.console
        )
        self.summary["eval"] = {name: r.summary() for name, r in judged.results.items()}
        self.summary["gap"] = judged.gap
        self.summary["gap_matched"] = judged.gap_matched
        self.notes += judged.notes
        rows = judged.episode_rows()
        write_atomically(self.dir / "episodes.json", json.dumps(rows).encode())

    def _draw(self, trained: TrainedPolicy) -> None:
        plot_learning_curve(self.dir, self.config.gap.metric)
        name, parameters = self.config.env, self.config.parameters
        # The port draws the same game as the reference and is always at hand.
        port = envs.resolve_backend(name, "generated")
        with envs.make(name, port, 1, interface="simulator", **parameters) as sim:
            record_game(self.dir / "video.gif", trained, sim, seed=self.config.seed)

    def _write_summary(self) -> None:
        text = json.dumps(self.summary, indent=2, allow_nan=False)
        write_atomically(self.dir / "summary.json", text.encode())


def _chunk_sizes(config: RunConfig) -> Iterator[int]:
    """Updates per chunk: the gcd of all intervals, so that every event falls on an edge."""
    total = config.num_updates
    log_every = config.updates_between(config.log_every) or max(1, total // 100)
    intervals = [log_every]
    for steps in (config.checkpoint_every, config.evaluation.every):
        if steps:
            intervals.append(config.updates_between(steps))
    size = math.gcd(*intervals)
    for _ in range(total // size):
        yield size
    if total % size:
        yield total % size


def _status(config: RunConfig, loop: Loop, episodes: Mapping[str, float]) -> str:
    name = f"{config.gap.metric}_mean"
    headline = f"{config.gap.metric} {episodes[name]:.1f}" if name in episodes else "no episode yet"
    split = " ".join(f"{k[:3]} {v:.0%}" for k, v in loop.time_split().items())
    return f"{headline} | {loop.steps_per_second / 1e3:,.0f}k steps/s {split}"


def _check_metric(spec: EnvSpec, config: RunConfig) -> None:
    choices = ("return", "length", *spec.metrics)
    if config.gap.metric not in choices:
        raise ConfigError(
            f"unknown env.gap.metric {config.gap.metric!r}; choose from {', '.join(choices)}"
        )


def _make_run_dir(config: RunConfig, backend: str) -> Path:
    if config.run_dir is not None:
        path = Path(config.run_dir)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"run_dir={path} exists and is not an empty folder; name another")
        path.mkdir(parents=True, exist_ok=True)
        return path
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = f"{stamp}-{config.env}-{backend}-{config.trainer}-{config.model.name}-s{config.seed}"
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        path = Path("runs") / f"{base}{suffix}"
        with suppress(FileExistsError):  # another run took it in the same second
            path.mkdir(parents=True)
            return path
    raise ConfigError(f"runs/{base} and 998 more folders of that name exist")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat
