"""Train a policy: ``python train/main.py env=pong``. ``--help`` lists groups and options."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from envs.core import MissingDependency
from train.config import ConfigError, parse_run
from train.report import print_summary
from train.run import Run, TrainingError

CONFIGS = str(Path(__file__).resolve().parents[1] / "configs")


@hydra.main(version_base="1.3", config_path=CONFIGS, config_name="config")
def main(cfg: DictConfig) -> None:
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raw = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    try:
        run = Run(parse_run(raw), raw, console)
    except (MissingDependency, ValueError) as error:
        sys.exit(f"error: {error}")
    try:
        summary = run.execute()
    except KeyboardInterrupt:
        console.print(f"interrupted; what there is lies in {run.dir}")
        sys.exit(130)
    except (TrainingError, ConfigError, OSError) as error:
        sys.exit(f"error: {error}; what there is lies in {run.dir}")
    print_summary(summary, console)
    console.print(f"results: {run.dir}")


if __name__ == "__main__":
    main()
