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
import numpy as np
from flax.traverse_util import flatten_dict
from omegaconf import OmegaConf
from rich.console import Console

import envs
from envs.batched import BatchedEnv
from envs.core import EnvSpec
from train.backends import Judged, evaluate_backends, evaluate_on
from train.checkpoint import TrainedPolicy, save_policy, write_atomically
from train.config import ConfigError, RunConfig
from train.episodes import summarize
from train.loops import Loop, Stretch, make_loop
from train.machine import device, machine, peak_memory_gb
from train.metrics import RunLogger, require_wandb
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
        self.spec: EnvSpec = envs.make_spec(config.env, **config.parameters)
        self.backend = envs.resolve_backend(config.env, config.backend, device())
        _check_metric(self.spec, config)
        self.policy = MLPPolicy(self.spec, config.model)
        self.ppo = PPO(self.spec, self.policy, config.ppo, config.num_updates)
        self.env = envs.make(config.env, self.backend, config.ppo.num_envs, **config.parameters)
        if config.logger == "wandb":
            require_wandb()
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
            greedy=config.evaluation.greedy,
            machine=machine(),
            train={},
            eval={},
            notes=self.notes,
        )

    def execute(self) -> dict[str, Any]:
        """The whole run. KeyboardInterrupt passes through after the folder was left readable."""
        write_atomically(self.dir / "config.yaml", OmegaConf.to_yaml(self.raw).encode())
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
                logger.summarize(flatten_dict(self.summary, sep="."))
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
        config, loop = self.config, make_loop(self.ppo, self.env, self.config)
        started, updates = time.perf_counter(), 0
        learner: LearnerState | None = None
        unlogged: Stretch | None = None
        try:
            for size, due in _edges(config):
                stretch = loop.advance(size)
                self._require_sound(stretch)
                # From here on this is the policy that is saved, whatever comes.
                learner, updates = stretch.learner, updates + size
                unlogged = unlogged.followed_by(stretch) if unlogged else stretch
                steps = updates * config.steps_per_update
                if "log" in due:
                    self._log(logger, loop, steps, unlogged)
                    unlogged = None
                if "checkpoint" in due:
                    path = self.dir / "checkpoints" / f"policy_{steps:012d}.safetensors"
                    save_policy(path, self._trained(learner))
                if "evaluate" in due:
                    self._evaluate_midway(logger, steps, self._trained(learner))
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

    def _require_sound(self, stretch: Stretch) -> None:
        invalid, loss = int(stretch.totals.invalid), stretch.metrics["loss"]
        if invalid:
            raise TrainingError(f"{invalid} invalid actions reached {self.spec.name}")
        leaves = jax.tree.leaves(stretch.learner.params)
        if not math.isfinite(loss) or not all(np.isfinite(x).all() for x in leaves):
            raise TrainingError(
                f"training has left the finite numbers (loss {loss}); "
                "a smaller learning_rate usually helps"
            )

    def _log(self, logger: RunLogger, loop: Loop, steps: int, stretch: Stretch) -> None:
        episodes = summarize(stretch.totals)
        logger.log(
            steps,
            {
                **{f"episodes/{k}": v for k, v in episodes.items()},
                **{f"loss/{k}": v for k, v in stretch.metrics.items()},
                **{f"time/{k}": v for k, v in loop.time_split().items()},
                "time/steps_per_second": loop.steps_per_second,
            },
            _status(self.config, loop, episodes),
        )

    def _evaluate_midway(self, logger: RunLogger, steps: int, trained: TrainedPolicy) -> None:
        # Under outside noise on every backend: a reference whose generator belongs to the whole
        # process would go on differently after an evaluation that used it.
        evaluation = self.config.evaluation
        results = evaluate_on(trained, self.backend, evaluation, self.console, "simulator")
        means = {
            f"eval/{name}": value
            for name, value in results.summary().items()
            if isinstance(value, (int, float))
        }
        logger.log(steps, means, "evaluating")

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
        port = envs.resolve_backend(name, "generated", device())
        with envs.make(name, port, 1, interface="simulator", **parameters) as sim:
            record_game(self.dir / "video.gif", trained, sim, seed=self.config.seed)

    def _write_summary(self) -> None:
        text = json.dumps(self.summary, indent=2, allow_nan=False)
        write_atomically(self.dir / "summary.json", text.encode())


def _edges(config: RunConfig) -> Iterator[tuple[int, set[str]]]:
    """How many updates until something is due, and what: each stretch ends at an event."""
    total = config.num_updates
    every = {
        "log": config.updates_between(config.log_every) or max(1, total // 100),
        "checkpoint": config.updates_between(config.checkpoint_every),
        "evaluate": config.updates_between(config.evaluation.every),
    }
    every = {name: interval for name, interval in every.items() if interval}
    done = 0
    while done < total:
        edge = min(total, *((done // interval + 1) * interval for interval in every.values()))
        due = {name for name, interval in every.items() if edge % interval == 0}
        yield edge - done, due | ({"log"} if edge == total else set())
        done = edge


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
    try:
        if config.run_dir is not None:
            return _claim(Path(config.run_dir))
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        parts = (stamp, config.env, backend, config.trainer, config.model.name, f"s{config.seed}")
        return _new_dir(Path("runs") / "-".join(parts))
    except OSError as error:
        raise ConfigError(f"cannot make the run's folder: {error}") from None


def _claim(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"run_dir={path} exists and is not an empty folder; name another")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _new_dir(base: Path) -> Path:
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        path = base.with_name(base.name + suffix)
        with suppress(FileExistsError):  # another run took it in the same second
            path.mkdir(parents=True)
            return path
    raise ConfigError(f"{base} and 998 more folders of that name exist")
