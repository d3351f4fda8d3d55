"""Evaluate a saved policy alone: ``python train/evaluate.py run=RUN_DIR backend=reference``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import train  # noqa: F401 - sets XLA flags before jax is loaded

import hydra  # isort: skip
from omegaconf import DictConfig, OmegaConf  # isort: skip
from rich.console import Console  # isort: skip

import envs  # isort: skip
from train.backends import evaluate_on  # isort: skip
from train.checkpoint import PolicyFileError, load_policy, write_atomically  # isort: skip
from train.config import ConfigError, parse_eval  # isort: skip
from train.report import evaluation_table  # isort: skip

CONFIGS = str(Path(__file__).resolve().parents[1] / "configs")


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="evaluate")
def main(cfg: DictConfig) -> None:
    console = Console()
    if OmegaConf.is_missing(cfg, "run"):
        sys.exit("error: name the folder of a training run: python train/evaluate.py run=RUN_DIR")
    run = Path(cfg.run)
    try:
        options = cast(dict[str, Any], OmegaConf.to_container(cfg.eval))
        config = parse_eval(dict(options, every=0))
        trained = load_policy(run / "policy.safetensors")
        backend = envs.resolve_backend(trained.spec.name, cfg.backend)
        interface = "batched" if backend == "reference" else "simulator"
        results = evaluate_on(trained, backend, interface, config, console)
    except (ConfigError, PolicyFileError, envs.UnknownName, envs.MissingDependency) as error:
        sys.exit(f"error: {error}")
    console.print(evaluation_table({backend: results.summary()}))
    report = dict(
        backend=backend,
        eval=options,
        **results.summary(),
        returns=results.returns.tolist(),
        lengths=results.lengths.tolist(),
    )
    path = run / f"evaluation_{backend}.json"
    write_atomically(path, json.dumps(report, indent=2).encode())
    console.print(f"results: {path}")


if __name__ == "__main__":
    main()
