"""Speed, side by side in one run: environments, trainers, and a peer.

    python scripts/bench.py                  everything, about five minutes
    python scripts/bench.py env=pong         one environment's sections
    python scripts/bench.py quick=true       tiny sizes: does it run?

All candidates of a section run in turn, several rounds; tables give medians and the spread
(interquartile range over the median), the JSON file every single time. Options, as key=value:
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file, Python looks for modules beside it only
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml
from rich.console import Console

import train  # noqa: F401 - sets an XLA flag before the modules below load jax
from envs.core import MissingDependency
from scripts.bench_pong import bench_environment
from scripts.bench_training import bench_cartpole, bench_pong_training
from train.machine import machine

ENVS = ("all", "pong", "cartpole")
FLAGS = ("rejax", "quick")
MIN_ROUNDS = 5  # fewer give no 95 % interval


@dataclass(frozen=True)
class Options:
    """What is measured and how long; HELP says what each is."""

    env: str = "all"
    rounds: int = 11
    sizes: tuple[int, ...] = (1024, 4096)
    frameskips: tuple[int, ...] = (1, 8)
    steps: int = 200
    cartpole_envs: tuple[int, ...] = (16, 64)
    cartpole_steps: int = 50_000
    rejax: bool = True
    pong_models: tuple[str, ...] = ("small", "100k")
    pong_envs: int = 1024
    pong_steps: int = 65_000
    quick: bool = False
    out: str = ""


HELP = dict(
    env="all, pong or cartpole",
    rounds=f"timed rounds, at least {MIN_ROUNDS}",
    sizes="environments of Pong alone",
    frameskips="frameskips of Pong alone",
    steps="vector steps of one round of Pong alone",
    cartpole_envs="environments of the CartPole training",
    cartpole_steps="environment steps of one round of CartPole training",
    rejax="compare with rejax (installs it into build/bench-peers)",
    pong_models="models of the Pong training",
    pong_envs="environments of the Pong training",
    pong_steps="environment steps of one round of Pong training",
    quick="tiny sizes; the figures mean nothing",
    out="the JSON file; default runs/bench-<time>.json",
)
QUICK: dict[str, Any] = dict(
    rounds=MIN_ROUNDS,
    sizes=(8,),
    steps=4,
    cartpole_envs=(4,),
    cartpole_steps=128,
    pong_models=("small",),
    pong_envs=8,
    pong_steps=256,
)


def parse_options(words: list[str]) -> Options:
    """Options from ``key=value`` words; what is typed wins over ``quick=true``.

    Raises:
        ValueError: a word that is no option, or a value that doesn't fit.
    """
    defaults = {f.name: getattr(Options(), f.name) for f in fields(Options)}
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in defaults:
            raise ValueError(f"unknown option {word!r}; choose from {', '.join(defaults)}")
        given[name] = _value(name, text, defaults[name])
    options = replace(Options(), **((QUICK if given.get("quick") else {}) | given))
    if options.env not in ENVS:
        raise ValueError(f"unknown env {options.env!r}; choose from {', '.join(ENVS)}")
    if options.rounds < MIN_ROUNDS:
        raise ValueError(f"rounds must be at least {MIN_ROUNDS}, got {options.rounds}")
    return options


def _value(name: str, text: str, default: Any) -> Any:
    """``text`` read as a value like the default: a bool, a positive number, text or several."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: can't read {text!r}") from error
    kind = type(default)
    if kind is str:
        return text
    if kind is tuple:
        items = value if isinstance(value, list) else text.split(",")
        return tuple(_value(name, str(item).strip(), default[0]) for item in items)
    if type(value) is not kind or (kind is int and value < 1):
        wanted = "true or false" if kind is bool else "a positive whole number"
        raise ValueError(f"{name} must be {wanted}, got {text!r}")
    return value


def measure(options: Options, console: Console) -> dict[str, Any]:
    """All wanted sections; the content of the JSON file."""
    report: dict[str, Any] = dict(machine=machine(), options=vars(options), sections={})
    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    console.print(f"machine: {about}")
    sections = report["sections"]
    rounds = options.rounds
    if options.env in ("all", "pong"):
        sections["pong_environment"] = bench_environment(
            console, options.sizes, options.frameskips, options.steps, rounds
        )
    if options.env in ("all", "cartpole"):
        sections["cartpole_training"] = bench_cartpole(
            console, options.cartpole_envs, options.cartpole_steps, rounds, options.rejax
        )
    if options.env in ("all", "pong"):
        sections["pong_training"] = bench_pong_training(
            console, options.pong_models, options.pong_envs, options.pong_steps, rounds
        )
    return report


def help_text() -> str:
    """The module's text and a line for each option."""
    default = Options()
    lines = []
    for name, text in HELP.items():
        value = getattr(default, name)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        lines.append(f"  {name + '=' + (shown.lower() if name in FLAGS else shown):28} {text}")
    return "\n".join([(__doc__ or "").strip(), "", *lines])


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if {"--help", "-h"} & set(words):
        print(help_text())
        return 0
    try:
        options = parse_options(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    out = Path(options.out or f"runs/bench-{time.strftime('%Y%m%d-%H%M%S')}.json")
    console = Console()
    started = time.perf_counter()
    try:
        report = measure(options, console)
    except MissingDependency as error:
        print(f"error: {error}", file=sys.stderr)
        return 6
    report["seconds"] = time.perf_counter() - started
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    console.print(f"{report['seconds']:.0f} s; every single time: {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
