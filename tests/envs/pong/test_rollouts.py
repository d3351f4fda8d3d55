"""Whole games: the JAX port against the C code, bit for bit."""

from __future__ import annotations

import pytest

from scripts.pong_parity import POLICIES, Case, compare
from tests.envs.pong.tables import OTHER_RULES

EVERYTHING = {
    *("final.observation", "reward", "terminated", "truncated", "draws"),
    *("metrics.score_difference", "metrics.score_left", "metrics.score_right"),
    *("metrics.last_round_steps", "state.observation"),
    *(f"state.{side}" for side in ("paddle_yl", "paddle_yr", "score_l", "score_r", "tick")),
    *(f"state.{part}" for part in ("ball_x", "ball_y", "ball_vx", "ball_vy")),
}


def assert_equal(case):
    assert set(case.mismatches) == EVERYTHING
    assert case.equal, {name: count for name, count in case.mismatches.items() if count}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("frameskip", [1, 8])
def test_two_thousand_steps_of_256_environments(frameskip, policy):
    case = compare(Case(policy, 256, 2000, seed=1, parameters={"frameskip": frameskip}))
    assert case.compared == 256 * 2000
    assert case.points > 200
    assert case.agent_hits > 1000
    assert frameskip == 1 or case.games > 100
    assert_equal(case)


@pytest.mark.parametrize("num_envs", [1, 7, 1005])
def test_batch_sizes(num_envs):
    case = compare(Case("random", num_envs, max(60, 2000 // num_envs), seed=2))
    assert case.points > 0
    assert_equal(case)


@pytest.mark.parametrize("rules", OTHER_RULES)
def test_other_rules(rules):
    case = compare(Case("tracking", 128, 500, seed=3, parameters=OTHER_RULES[rules]))
    assert case.games > 0
    assert case.agent_hits > 0
    assert_equal(case)
