"""Every line of DIFFERENCES.md names tests, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEXT = (HERE.parents[2] / "envs/pong/DIFFERENCES.md").read_text()
LINES = re.split(r"\n- ", TEXT)[1:]


@pytest.mark.parametrize("line", LINES, ids=[line.split("\n")[0][:40] for line in LINES])
def test_the_named_tests_exist(line):
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", line)
    assert named
    for file, test in named:
        assert f"def {test}(" in (HERE / file).read_text(), f"{file}::{test}"


def test_three_sections_in_order():
    sections = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert sections == ["Open gaps", "Quirks copied on purpose", "Deliberate deviations"]
