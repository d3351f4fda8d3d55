"""Every environment, backend and face passes level L0; a registered one is covered by that."""

import json

import pytest

from tests.fixtures import continuous, image_state, served, simultaneous, turn_based, walk
from verification.conformance import registered_targets, room_targets, run_conformance

ROOMS = (simultaneous, turn_based, image_state, continuous, served, walk)
TARGETS = [
    *registered_targets(),
    *(target for room in ROOMS for target in room_targets(room)),
    *room_targets(continuous, dict_observation=True),
]


def ids(targets):
    """A name for each target, made unique where parameters differ."""
    names = [str(target) for target in targets]
    return [f"{n}-{names[:i].count(n)}" if n in names[:i] else n for i, n in enumerate(names)]


def marked(target):
    """A backend in another process starts several interpreters."""
    return pytest.param(target, marks=pytest.mark.slow if "/process" in target.name else ())


@pytest.mark.parametrize("target", [*map(marked, TARGETS)], ids=ids(TARGETS))
def test_conformance(target):
    report = run_conformance(target)
    assert report.passed, f"\n{report.text()}"
    assert json.loads(json.dumps(report.to_json()))["passed"]
