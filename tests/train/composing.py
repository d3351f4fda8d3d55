"""Configurations as the command line composes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from train.config import RunConfig, parse_run

CONFIGS = Path(__file__).parents[2] / "configs"


def compose_raw(*overrides: str) -> dict[str, Any]:
    """What main.py gets for these command-line words."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return OmegaConf.to_container(compose("config", list(overrides)), resolve=True)


def compose_run(*overrides: str) -> RunConfig:
    """The same, typed."""
    return parse_run(compose_raw(*overrides))
