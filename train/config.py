"""The typed configuration: what Hydra composed becomes numbers that are known to fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from train.policies.policy import ModelConfig

SCHEDULES = ("constant", "linear")
LOGGERS = ("none", "wandb")
TRAINERS = ("jax",)


class ConfigError(ValueError):
    """A configuration that can't run; the message names the option and what would fit."""


@dataclass(frozen=True)
class PPOConfig:
    """The algorithm's numbers.

    Args:
        num_envs, horizon: environments and steps of one rollout.
        num_minibatches: parts of the rows that one epoch visits one after another; rows are
            permuted, never cut along time.
        schedule: of the learning rate over all optimiser steps: "constant", or "linear" to 0.
        normalize_observations: by running statistics, frozen from rollout through all epochs.
    """

    num_envs: int
    horizon: int
    num_minibatches: int
    epochs: int
    learning_rate: float
    gamma: float
    gae_lambda: float
    schedule: str = "constant"
    clip_eps: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_observations: bool = False


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation of the trained policy: ``episodes`` first episodes of as many environments.

    ``max_steps`` caps an episode; capped ones are counted apart. ``every`` (environment steps, 0
    for never) adds evaluations on the training backend during training.
    """

    episodes: int = 256
    max_steps: int = 5000
    every: int = 0
    greedy: bool = True
    seed: int = 10_000


@dataclass(frozen=True)
class GapConfig:
    """What is compared between the backends, and the margin of "equivalent" (fixed beforehand)."""

    metric: str
    margin: float


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    env: str
    parameters: Mapping[str, Any]
    backend: str
    trainer: str
    model: ModelConfig
    ppo: PPOConfig
    evaluation: EvalConfig
    gap: GapConfig
    seed: int
    total_steps: int
    checkpoint_every: int = 0
    log_every: int = 0
    measure_env_share: bool = True
    logger: str = "none"
    run_dir: str | None = None
    wandb: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update."""
        return self.ppo.num_envs * self.ppo.horizon

    @property
    def num_updates(self) -> int:
        """Updates that reach ``total_steps``; the last one is never cut short."""
        return math.ceil(self.total_steps / self.steps_per_update)

    def updates_between(self, steps: int) -> int:
        """An interval in environment steps as a number of updates, at least 1; 0 stays 0."""
        return 0 if steps == 0 else max(1, round(steps / self.steps_per_update))


def to_int(name: str, value: Any, minimum: int = 1, maximum: int = 2**62) -> int:
    """An integer from ``1000``, ``1e9`` or ``"2e6"``; ConfigError names the option otherwise."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value) if not isinstance(value, int) else value
        if number != int(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None
    if not minimum <= number <= maximum:
        raise ConfigError(f"{name} must be between {minimum} and {maximum}, got {value!r}")
    return int(number)


def to_float(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite float in [low, high]; ConfigError otherwise."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a number, got {value!r}") from None
    if not (math.isfinite(number) and low <= number <= high):
        raise ConfigError(f"{name} must be between {low} and {high}, got {value!r}")
    return number


def to_bool(name: str, value: Any) -> bool:
    """A bool and nothing else: the string "no" is not silently true."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def to_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of the choices; ConfigError lists them otherwise."""
    if value not in choices:
        raise ConfigError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
    return value


def parse_run(c: Mapping[str, Any]) -> RunConfig:
    """The run that a composed configuration describes.

    Args:
        c: plain containers, as ``OmegaConf.to_container(cfg, resolve=True)`` gives them.

    Raises:
        ConfigError: a value of the wrong kind or size, or two sizes that don't fit.
    """
    _refuse_unknown(c)
    ppo = _parse_ppo(c)
    _check_counts(ppo, to_int("total_steps", c["total_steps"]))
    gap = c["env"]["gap"]
    return RunConfig(
        env=str(c["env"]["name"]),
        parameters=_parse_parameters(c["env"]["parameters"]),
        backend=str(c["backend"]),
        trainer=to_choice("trainer", c["trainer"], TRAINERS),
        model=parse_model(c["model"]),
        ppo=ppo,
        evaluation=parse_eval(c["eval"]),
        gap=GapConfig(
            metric=str(gap["metric"]), margin=to_float("env.gap.margin", gap["margin"], 1e-12)
        ),
        seed=to_int("seed", c["seed"], 0, 2**32 - 1),
        total_steps=to_int("total_steps", c["total_steps"]),
        checkpoint_every=to_int("checkpoint.every", c["checkpoint"]["every"], 0),
        log_every=to_int("log_every", c["log_every"], 0),
        measure_env_share=to_bool("measure_env_share", c["measure_env_share"]),
        logger=to_choice("logger", c["logger"]["name"], LOGGERS),
        run_dir=None if c["run_dir"] is None else str(c["run_dir"]),
        wandb={k: v for k, v in c["logger"].items() if k != "name"},
    )


def parse_eval(c: Mapping[str, Any]) -> EvalConfig:
    """The ``eval`` keys."""
    return EvalConfig(
        # Judging needs a variance, so two episodes are the least.
        episodes=to_int("eval.episodes", c["episodes"], 2, 1_000_000),
        max_steps=to_int("eval.max_steps", c["max_steps"]),
        every=to_int("eval.every", c["every"], 0),
        greedy=to_bool("eval.greedy", c["greedy"]),
        seed=to_int("eval.seed", c["seed"], 0, 2**32 - 1),
    )


def parse_model(c: Mapping[str, Any]) -> ModelConfig:
    """The ``model`` group."""
    model = ModelConfig(
        name=str(c["name"]),
        depth=to_int("model.depth", c["depth"], 1, 1000),
        width=to_int("model.width", c.get("width", 0), 0, 10**6),
        parameters=to_int("model.parameters", c.get("parameters", 0), 0),
    )
    if not (model.width or model.parameters):
        raise ConfigError("model needs a width, or the number of parameters to reach")
    return model


def _parse_parameters(parameters: Any) -> dict[str, Any]:
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"env.parameters must be names and values, got {parameters!r}")
    return {name: value for name, value in parameters.items() if value is not None}


# Every option there is: Hydra lets "+name=value" through, and a misspelt one would do nothing.
_OPTIONS = {
    "": {
        *("env", "backend", "trainer", "model", "logger", "seed", "total_steps", "eval"),
        *("checkpoint", "log_every", "measure_env_share", "run_dir"),
        *(f.name for f in fields(PPOConfig)),
    },
    "env": {"name", "parameters", "gap"},
    "env.gap": {"metric", "margin"},
    "eval": {f.name for f in fields(EvalConfig)},
    "checkpoint": {"every"},
    "model": {f.name for f in fields(ModelConfig)},
    "logger": {"name", "mode", "project", "entity", "group", "tags"},
}


def _refuse_unknown(c: Mapping[str, Any]) -> None:
    for group, known in _OPTIONS.items():
        node: Any = c
        for part in filter(None, group.split(".")):
            node = node.get(part, {})
        if not isinstance(node, Mapping):
            raise ConfigError(f"{group} must be names and values, got {node!r}")
        for name in node:
            if name not in known:
                close = get_close_matches(str(name), known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"choose from {sorted(known)}"
                full = f"{group}.{name}" if group else name
                raise ConfigError(f"unknown option {full!r}; {hint}")


def _check_counts(ppo: PPOConfig, total_steps: int) -> None:
    """Optimiser steps are counted in int32, by the learning-rate schedule as well."""
    updates = math.ceil(total_steps / (ppo.num_envs * ppo.horizon))
    if updates * ppo.epochs * ppo.num_minibatches >= 2**31:
        raise ConfigError(
            f"total_steps={total_steps} makes {updates} updates of {ppo.epochs} epochs and "
            f"{ppo.num_minibatches} minibatches, more than 2**31 optimiser steps; "
            "raise num_envs or horizon, or lower total_steps"
        )


def _parse_ppo(c: Mapping[str, Any]) -> PPOConfig:
    ppo = PPOConfig(
        num_envs=to_int("num_envs", c["num_envs"], 1, 10**7),
        horizon=to_int("horizon", c["horizon"], 1, 10**6),
        num_minibatches=to_int("num_minibatches", c["num_minibatches"]),
        epochs=to_int("epochs", c["epochs"], 1, 10**4),
        learning_rate=to_float("learning_rate", c["learning_rate"], 0.0),
        gamma=to_float("gamma", c["gamma"], 0.0, 1.0),
        gae_lambda=to_float("gae_lambda", c["gae_lambda"], 0.0, 1.0),
        schedule=to_choice("schedule", c["schedule"], SCHEDULES),
        clip_eps=to_float("clip_eps", c["clip_eps"], 1e-6, 10.0),
        ent_coef=to_float("ent_coef", c["ent_coef"], 0.0),
        vf_coef=to_float("vf_coef", c["vf_coef"], 0.0),
        max_grad_norm=to_float("max_grad_norm", c["max_grad_norm"], 1e-12),
        normalize_observations=to_bool("normalize_observations", c["normalize_observations"]),
    )
    if ppo.num_envs % ppo.num_minibatches:
        raise ConfigError(
            f"num_envs={ppo.num_envs} is not divisible by num_minibatches={ppo.num_minibatches}"
        )
    return ppo
