"""Train a policy: ``python train/main.py env=pong``. ``--help`` lists groups and options."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, cast

import train  # noqa: F401 - sets XLA flags before jax is loaded

import hydra  # isort: skip
from omegaconf import DictConfig, OmegaConf  # isort: skip
from rich.console import Console  # isort: skip

from envs.core import MissingDependency  # isort: skip
from envs.registry import UnknownName  # isort: skip
from train.config import ConfigError, parse_run  # isort: skip
from train.report import print_summary  # isort: skip
from train.run import Run, TrainingError  # isort: skip

CONFIGS = str(Path(__file__).resolve().parents[1] / "configs")


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="config")
def main(cfg: DictConfig) -> None:
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raw = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    try:
        run = Run(parse_run(raw), raw, console)
    except (ConfigError, UnknownName, MissingDependency, ValueError) as error:
        sys.exit(f"error: {error}")
    try:
        summary = run.execute()
    except KeyboardInterrupt:
        console.print(f"interrupted; what there is lies in {run.dir}")
        sys.exit(130)
    except TrainingError as error:
        sys.exit(f"error: {error}; what there is lies in {run.dir}")
    print_summary(summary, console)
    console.print(f"results: {run.dir}")


if __name__ == "__main__":
    main()
