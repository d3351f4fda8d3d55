"""The benchmark runs every candidate and writes down what it saw; no figure is judged here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

import envs
from scripts import bench, bench_peers, bench_pong, bench_training
from scripts.bench_timing import interleave, paired_ratio

ROUNDS = bench.MIN_ROUNDS

PEER = """
import json, os, sys
config = json.loads(sys.argv[1])
print(json.dumps({"compile_seconds": 1.0, "versions": {"flags": os.environ["XLA_FLAGS"]}}))
sys.stdout.flush()
for number, line in enumerate(sys.stdin, start=1):
    if number > config["answers"]:
        sys.exit(3)
    print(json.dumps({"seconds": float(number)}), flush=True)
"""


@pytest.fixture
def peer_script(tmp_path: Path) -> Path:
    path = tmp_path / "peer.py"
    path.write_text(PEER, encoding="utf-8")
    return path


def test_rounds_are_interleaved_and_another_processs_seconds_are_kept():
    order: list[str] = []
    runs = {
        "here": lambda: order.append("here"),
        "there": lambda: order.append("there") or 0.5,
    }
    timed = interleave(runs, work=10, rounds=3)
    assert order == ["here", "there"] * 4  # one uncounted call each
    assert timed["there"]["wall_seconds"] == [0.5] * 3
    assert timed["there"]["rate"] == 20.0
    assert timed["there"]["cpu_rate"] is None
    assert len(timed["here"]["cpu_seconds"]) == 3


def test_a_ratio_is_taken_round_by_round():
    a, b = dict(wall_seconds=[1.0, 10.0, 2.0]), dict(wall_seconds=[2.0, 20.0, 4.0])
    assert paired_ratio(a, b) == 2.0


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.0, 1.2, "holds"), (0.8, 0.99, "MISSED"), (0.9, 1.1, "not decided by this run")],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, word: str):
    assert bench_training.verdict(low, high, 1.0) == word


def test_a_peer_announces_itself_answers_and_ends(peer_script: Path):
    with bench_peers.Peer(Path(sys.executable), peer_script, {"answers": 9}, "--x=1") as peer:
        assert peer.announced["versions"] == {"flags": "--x=1"}
        assert [peer.run(), peer.run()] == [1.0, 2.0]
        process = peer._process
    assert process.returncode == 0


def test_a_peer_that_dies_is_named_with_its_exit_status(peer_script: Path):
    with (
        bench_peers.Peer(Path(sys.executable), peer_script, {"answers": 0}, "") as peer,
        pytest.raises(envs.MissingDependency, match="ended with 3"),
    ):
        peer.run()


def test_rejax_gets_the_same_numbers():
    ours = bench_training.run_config("env=cartpole", "num_envs=64", "learning_rate=1e-3")
    theirs = bench_training.rejax_config(ours)
    assert theirs["num_envs"] == 64
    assert theirs["num_steps"] == ours.ppo.horizon
    assert theirs["learning_rate"] == 1e-3
    assert theirs["hidden"] == [64, 64]


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_random_actions_cover_the_space_evenly(name: str):
    spec = envs.make_spec(name)
    env = envs.make(name, "jax", 600, interface="batched")
    actions = bench_pong.random_actions(spec, env.reset(0), 3, 7, bench_pong.np)
    counts = bench_pong.np.bincount(actions, minlength=spec.action_space.n)
    assert len(counts) == spec.action_space.n
    assert counts.min() > 0.7 * 600 / len(counts)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("env=chess", "unknown env 'chess'; choose from all, pong, cartpole"),
        ("rounds=4", "rounds must be at least 5, got 4"),
        ("rounds=0", "rounds must be a positive whole number, got '0'"),
        ("steps=few", "steps must be a positive whole number, got 'few'"),
        ("sizes=8,none", "sizes must be a positive whole number, got 'none'"),
        ("rejax=maybe", "rejax must be true or false, got 'maybe'"),
        ("round=7", "unknown option 'round=7'; choose from env, rounds"),
        ("quick", "unknown option 'quick'"),
        ("steps=[", "steps: can't read '\\['"),
    ],
)
def test_bad_options(word: str, message: str, capsys):
    with pytest.raises(ValueError, match=message):
        bench.parse_options([word])
    assert bench.main([word]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_what_is_typed_wins_over_quick_in_any_order():
    for words in (["quick=true", "sizes=16,32"], ["sizes=[16, 32]", "quick=true"]):
        options = bench.parse_options(words)
        assert options.sizes == (16, 32)
        assert options.steps == bench.QUICK["steps"]


def test_help_explains_every_option(capsys):
    assert bench.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in vars(bench.Options()):
        assert f"  {name}=" in text


def test_a_missing_build_is_exit_status_six(capsys, monkeypatch):
    def missing(*_, **__):
        raise envs.MissingDependency("pong: not built; run `make pong`")

    monkeypatch.setattr(bench_pong.envs, "make", missing)
    assert bench.main(["env=pong", "quick=true"]) == 6
    assert capsys.readouterr().err == "error: pong: not built; run `make pong`\n"


def test_pong_alone_measures_every_candidate():
    report = bench_pong.bench_environment(Console(quiet=True), [8], [1, 8], steps=3, rounds=5)
    assert [(r["frameskip"], r["envs"]) for r in report["results"]] == [(1, 8), (8, 8)]
    for result in report["results"]:
        assert list(result["runs"]) == [
            "C vec_step, actions written",
            "C vec_step, fixed actions",
            "reference, views",
            "reference, copies",
            "jax",
        ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_the_report_holds_every_single_time(name: str, tmp_path: Path, capsys):
    out = tmp_path / "deep" / "bench.json"
    words = [f"env={name}", "quick=true", "rejax=false", "frameskips=8", f"out={out}"]
    assert bench.main(words) == 0
    assert "machine: processor " in capsys.readouterr().out
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["options"]["env"] == name
    assert report["machine"]["cores"] >= 1
    expected = {"cartpole": {"cartpole_training"}, "pong": {"pong_environment", "pong_training"}}
    assert set(report["sections"]) == expected[name]
    for section in report["sections"].values():
        for result in section["results"]:
            for run in result["runs"].values():
                assert len(run["wall_seconds"]) == ROUNDS
                assert min(run["wall_seconds"]) > 0
    if name == "pong":
        (training,) = report["sections"]["pong_training"]["results"]
        names = {"jax, fused", "C reference, host loop", "jax, host loop"}
        assert set(training["shares"]) == names
        assert set(training["runs"]) == names | {f"{n}, null" for n in names}
