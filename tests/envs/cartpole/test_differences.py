"""Every line of DIFFERENCES.md names tests, and the tests exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LINES = (HERE.parents[2] / "envs/cartpole/DIFFERENCES.md").read_text().split("\n- ")[1:]
SECTIONS = ["## Open gaps", "## Quirks copied on purpose", "## Deliberate deviations"]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:30])
def test_line_names_tests_that_exist(line):
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", line)
    assert named, line
    for file, test in named:
        assert f"def {test}(" in (HERE / file).read_text(), f"{file}::{test}"


def test_there_are_three_sections():
    text = (HERE.parents[2] / "envs/cartpole/DIFFERENCES.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == SECTIONS
