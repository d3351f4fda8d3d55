"""The speed comparison runs every backend and names them."""

from __future__ import annotations

import pytest

import envs
from scripts import pong_speed


def test_all_backends_are_measured(capsys):
    short = ["--envs", "8", "--frameskip", "8", "--steps", "5", "--rounds", "1"]
    assert pong_speed.main(short) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("frameskip 8, 8 environments: raw ")
    for name in ("reference, copy=False ", "reference ", "jax "):
        assert name in line


def test_missing_build_is_exit_code_six(capsys, monkeypatch):
    def missing(*_, **__):
        raise envs.MissingDependency("pong: not built; run `make pong`")

    monkeypatch.setattr(pong_speed.envs, "make", missing)
    assert pong_speed.main([]) == 6
    assert capsys.readouterr().err.strip() == "pong speed: pong: not built; run `make pong`"


def test_bad_arguments(capsys):
    assert pong_speed.main(["--envs", "0"]) == 6
    assert "num_envs must be a positive integer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        pong_speed.main(["--envs", "few"])
