"""The long comparison notices differences and says so in its exit code and its JSON."""

from __future__ import annotations

import json

import pytest

import envs
from envs.pong import contract
from scripts import pong_parity

SHORT = ["--steps", "12e3", "--envs", "64", "--frameskip", "8", "--policy", "random"]


def test_equal_is_exit_code_zero(tmp_path, capsys):
    report = tmp_path / "parity.json"
    assert pong_parity.main([*SHORT, "--json", str(report)]) == 0
    assert "equal to the last bit" in capsys.readouterr().out
    record = json.loads(report.read_text())
    (case,) = record["cases"]
    assert record["equal"] is True
    assert case["compared"] >= 12_000
    assert case["points"] > 0
    assert set(case["mismatches"].values()) == {0}


def test_a_difference_is_exit_code_two(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contract, "HIT_REWARD", 0.125)  # read by the port only
    report = tmp_path / "parity.json"
    assert pong_parity.main([*SHORT, "--json", str(report)]) == 2
    assert "NOT EQUAL" in capsys.readouterr().out
    record = json.loads(report.read_text())
    (case,) = record["cases"]
    wrong = {name: count for name, count in case["mismatches"].items() if count}
    assert record["equal"] is False
    assert wrong == {"reward": case["agent_hits"]}


def test_missing_build_is_exit_code_six(capsys, monkeypatch):
    def missing(*_, **__):
        raise envs.MissingDependency("pong: not built; run `make pong`")

    monkeypatch.setattr(pong_parity.envs, "make", missing)
    assert pong_parity.main(SHORT) == 6
    assert capsys.readouterr().err.strip() == "pong parity: pong: not built; run `make pong`"


@pytest.mark.parametrize(
    "bad", [["--steps", "many"], ["--steps", "0"], ["--envs", "0"], ["--policy", "perfect"]]
)
def test_bad_arguments(bad, capsys):
    with pytest.raises(SystemExit) as stopped:
        pong_parity.main(bad)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err
