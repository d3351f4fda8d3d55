"""The main job from the command line to the files it leaves."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from rich.console import Console

from tests.train.composing import compose_raw
from train import evaluate, main
from train.checkpoint import load_policy
from train.config import ConfigError, parse_run
from train.metrics import read_metrics
from train.run import Run, TrainingError, _edges

ROOT = Path(__file__).parents[2]
TINY = (
    "env=cartpole",
    "total_steps=4000",
    "num_envs=8",
    "horizon=16",
    "eval.episodes=6",
    "eval.max_steps=500",
)


def make_run(run_dir: Path, *overrides: str) -> Run:
    raw = compose_raw(*TINY, f"run_dir={run_dir}", *overrides)
    return Run(parse_run(raw), raw, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run_dir = tmp_path_factory.mktemp("run") / "r"
    overrides = ("checkpoint.every=1000", "eval.every=2000", "log_every=500")
    return run_dir, make_run(run_dir, *overrides).execute()


def test_the_summary_has_every_figure_under_its_published_key(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    run_dir, returned = finished
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary == json.loads(json.dumps(returned))
    assert summary["status"] == "finished"
    head = {"env", "backend", "trainer", "model", "policy_parameters", "seed"}
    assert head <= set(summary)
    assert summary["backend"] == "jax"  # resolved, not "generated"
    assert {
        "env_steps",
        "seconds",
        "steps_per_second",
        "compile_seconds",
        "env_share",
        "env_share_ci95",
        "peak_memory_gb",
    } <= set(summary["train"])
    assert summary["train"]["env_steps"] == 32 * 8 * 16
    for backend in ("jax", "reference"):
        assert {
            "return_mean",
            "return_ci95",
            "episodes_finished",
            "episodes_capped",
            "length_mean",
        } <= set(summary["eval"][backend])
        assert summary["eval"][backend]["episodes_finished"] == 6
    for key, design in (("gap", "independent"), ("gap_matched", "paired")):
        gap = summary[key]
        assert {"difference", "ci95", "p_value", "margin", "verdict", "n"} <= set(gap)
        assert gap["between"] == ["jax", "reference"]
        assert gap["design"] == design
    assert summary["gap_matched"]["difference"] == 0.0


def test_the_folder_holds_what_the_documentation_promises(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    run_dir, _ = finished
    lines = read_metrics(run_dir)
    training = [line for line in lines if "loss/loss" in line]
    assert [line["env_steps"] for line in training] == [512 * i for i in range(1, 9)]
    assert any("eval/return_mean" in line for line in lines)
    saved = sorted(p.name for p in (run_dir / "checkpoints").iterdir())
    assert saved == [f"policy_{1024 * i:012d}.safetensors" for i in range(1, 5)]
    last = load_policy(run_dir / "checkpoints" / saved[-1])
    final = load_policy(run_dir / "policy.safetensors")
    np.testing.assert_array_equal(
        last.params["actor_0"]["kernel"], final.params["actor_0"]["kernel"]
    )
    curve = np.asarray(Image.open(run_dir / "plots" / "learning_curve.png").convert("L"))
    assert curve.std() > 5
    with Image.open(run_dir / "video.gif") as video:
        assert video.n_frames > 5
    episodes = json.loads((run_dir / "episodes.json").read_text())
    assert len(episodes["reference"]["returns"]) == 6


@pytest.mark.slow
def test_a_run_on_the_reference_clocks_the_phases_of_its_host_loop(tmp_path: Path) -> None:
    summary = make_run(tmp_path / "r", "backend=reference", "total_steps=1000").execute()
    assert summary["backend"] == "reference"
    split = summary["train"]["time_split"]
    assert set(split) == {"environment", "policy", "learner", "other"}
    assert sum(split.values()) == pytest.approx(1.0)
    assert summary["gap"]["between"] == ["jax", "reference"]


@pytest.mark.slow
def test_the_same_seed_trains_the_same_policy(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    make_run(tmp_path / "again", "measure_env_share=false").execute()
    a = load_policy(finished[0] / "policy.safetensors").params["critic_head"]["kernel"]
    b = load_policy(tmp_path / "again" / "policy.safetensors").params["critic_head"]["kernel"]
    np.testing.assert_array_equal(a, b)


def test_a_run_never_writes_into_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("data")
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        make_run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


def test_two_runs_of_one_second_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = compose_raw(*TINY)
    runs = [Run(parse_run(raw), raw, Console(file=io.StringIO())) for _ in range(3)]
    assert len({run.dir for run in runs}) == 3


@pytest.mark.slow
def test_numbers_that_are_not_finite_stop_the_run_and_leave_its_folder_readable(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "r", "learning_rate=1e30", "max_grad_norm=1e30")
    with pytest.raises(TrainingError, match="smaller learning_rate"):
        run.execute()
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "finite numbers" in summary["error"]
    if (tmp_path / "r" / "policy.safetensors").exists():
        load_policy(tmp_path / "r" / "policy.safetensors")  # refuses what is not finite


@pytest.mark.slow
def test_every_event_comes_at_its_own_interval(tmp_path: Path) -> None:
    """Intervals of 5, 3 and 4 updates: lines where asked, policies where asked, all of it."""
    step = 8 * 16
    words = (f"log_every={5 * step}", f"checkpoint.every={3 * step}", f"eval.every={4 * step}")
    run = make_run(tmp_path / "r", f"total_steps={13 * step}", "measure_env_share=false", *words)
    edges = list(_edges(run.config))
    assert sum(size for size, _ in edges) == 13
    run.execute()
    lines = read_metrics(tmp_path / "r")
    logged = [line["env_steps"] // step for line in lines if "loss/loss" in line]
    assert logged == [5, 10, 13]
    evaluated = [line["env_steps"] // step for line in lines if "eval/return_mean" in line]
    assert evaluated == [4, 8, 12]
    names = sorted(p.name for p in (tmp_path / "r" / "checkpoints").iterdir())
    assert names == [f"policy_{i * step:012d}.safetensors" for i in (3, 6, 9, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["cartpole", "pong"])
def test_evaluating_during_training_does_not_change_the_training(env: str, tmp_path: Path) -> None:
    """On the reference as well, whose generator may belong to the whole process."""
    kernels = []
    for every in (0, 256):
        words = (f"env={env}", "backend=reference", "total_steps=1000", f"eval.every={every}")
        run_dir = tmp_path / str(every)
        make_run(run_dir, *words, "measure_env_share=false", "eval.max_steps=5").execute()
        kernels.append(load_policy(run_dir / "policy.safetensors").params["actor_0"]["kernel"])
    np.testing.assert_array_equal(*kernels)


def test_a_missing_wandb_is_one_line_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    raw = compose_raw(*TINY, "logger=wandb", f"run_dir={tmp_path / 'r'}")
    with pytest.raises(SystemExit, match="error: logger=wandb needs the package wandb"):
        main.main.__wrapped__(OmegaConf.create(raw))
    assert not (tmp_path / "r").exists()


def test_an_invalid_action_stops_the_run_at_the_chunks_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    to_env = run.ppo.to_env
    run.ppo.to_env = lambda action: to_env(action) + 2  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="invalid actions reached cartpole"):
        run.execute()


def test_an_unknown_metric_of_the_gap_names_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose from return, length"):
        make_run(tmp_path / "r", "env.gap.metric=score")
    assert not (tmp_path / "r").exists()


# --- as a process -----------------------------------------------------------------------------


def command(script: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "train" / script), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=cartpole", "backend=cobol"], "choose from generated, reference, jax"),
        (["env=cartpole", "num_envs=10"], "num_envs=10 is not divisible"),
        (["env=pong", "env.parameters.frameskip=0"], "frameskip"),
        (["env=pong", "+env.parameters.gravity=9"], "gravity"),
        (["env=cartpole", "+env.parameters.gravity=9"], "gravity"),
        (["env=cartpole", "env.parameters=3"], "env.parameters must be names and values"),
        (["env=cartpole", "total_steps=1e15"], "more than 2**31 optimiser steps"),
        (["env=cartpole", "run_dir=/proc/nowhere/r"], "cannot make the run's folder"),
        (["env=cartpole", "run_dir=/dev/null"], "is not an empty folder"),
    ],
)
def test_bad_words_give_one_clear_line_and_no_folder(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main.main.__wrapped__(OmegaConf.create(compose_raw(*words)))
    text = str(exit_.value.code)
    assert text.startswith("error: ")
    assert message in text
    assert len(text.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("run", "message"),
    [("???", "name the folder of a training run"), ("nowhere", "no policy at nowhere")],
)
def test_evaluate_says_what_is_missing(run: str, message: str) -> None:
    options = dict(episodes=4, max_steps=10, greedy=True, seed=0)
    with pytest.raises(SystemExit, match=message):
        evaluate.main.__wrapped__(
            OmegaConf.create(dict(run=run, backend="reference", eval=options))
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [(["env=tetris"], "cartpole"), (["env=cartpole", "backend=cobol"], "error: cartpole has no")],
)
def test_a_refused_command_fails_and_leaves_nothing(
    words: list[str], message: str, tmp_path: Path
) -> None:
    result = command("main.py", *words, cwd=tmp_path)
    assert result.returncode == 1
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_help_shows_groups_and_options(tmp_path: Path) -> None:
    result = command("main.py", "--help", cwd=tmp_path)
    assert result.returncode == 0
    for word in ("env: cartpole, pong", "model:", "num_minibatches", "eval"):
        assert word in result.stdout
    assert not list(tmp_path.iterdir())


def test_a_saved_policy_is_evaluated_alone(finished: tuple[Path, dict[str, Any]]) -> None:
    run_dir, summary = finished
    result = command(
        "evaluate.py", f"run={run_dir}", "backend=jax", "eval.episodes=6", cwd=run_dir.parent
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((run_dir / "evaluation_jax_policy.json").read_text())
    assert report["return_mean"] == summary["eval"]["jax"]["return_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_readable_folder(how: signal.Signals, tmp_path: Path) -> None:
    words = [*TINY, "total_steps=1e9", "log_every=2000", "run_dir=r"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train" / "main.py"), *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        path = tmp_path / "r" / "metrics.jsonl"
        while not (path.exists() and len(path.read_text().splitlines()) > 2):
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        process.send_signal(how)
        assert process.wait(60) == 130
    finally:
        process.kill()
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["train"]["env_steps"] > 0
    assert len(read_metrics(tmp_path / "r")) > 2
    load_policy(tmp_path / "r" / "policy.safetensors")


@pytest.mark.slow
def test_wandb_offline_gets_the_run(tmp_path: Path) -> None:
    result = command(
        "main.py", *TINY, "logger=wandb", "run_dir=r", "measure_env_share=false", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    files = list((tmp_path / "r" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    assert files[0].stat().st_size > 5000
