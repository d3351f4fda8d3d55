"""Evaluate a saved policy alone: ``python train/evaluate.py run=RUN_DIR backend=reference``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

import envs
from train.backends import evaluate_on
from train.checkpoint import load_policy, write_atomically
from train.config import EvalConfig, parse_eval
from train.machine import device
from train.report import evaluation_table

CONFIGS = str(Path(__file__).resolve().parents[1] / "configs")


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    console = Console()
    if OmegaConf.is_missing(cfg, "run"):
        sys.exit(
            "error: name the folder of a training run, or one of its policy files: "
            "python train/evaluate.py run=RUN_DIR"
        )
    run = Path(str(cfg.run))
    try:
        file = run if run.suffix == ".safetensors" else run / "policy.safetensors"
        trained = load_policy(file)
        run = file.parent.parent if file.parent.name == "checkpoints" else file.parent
        config = _eval_config(run, cfg)
        backend = envs.resolve_backend(trained.spec.name, cfg.backend, device())
        results = evaluate_on(trained, backend, config, console)
    except (ValueError, OSError, envs.MissingDependency) as error:
        sys.exit(f"error: {error}")
    if not results.finished.any():
        console.print(f"all episodes were cut at eval.max_steps={config.max_steps}; raise it")
    console.print(evaluation_table({backend: results.summary()}, config.greedy))
    report = dict(
        backend=backend,
        policy=str(file),
        episodes=config.episodes,
        max_steps=config.max_steps,
        greedy=config.greedy,
        eval_seed=config.seed,
        **results.summary(),
        returns=results.returns.tolist(),
        lengths=results.lengths.tolist(),
    )
    path = run / f"evaluation_{backend}_{file.stem}.json"
    write_atomically(path, json.dumps(report, indent=2).encode())
    console.print(f"results: {path}")


def _eval_config(run: Path, cfg: DictConfig) -> EvalConfig:
    """The run's own evaluation settings, with what was typed on top."""
    options = OmegaConf.load(run / "config.yaml").eval
    typed = {name: value for name, value in cfg.eval.items() if value is not None}
    return parse_eval(dict(options, **typed))


if __name__ == "__main__":
    main()
