"""Every environment lists where its backends differ, and every line names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import envs

ROOT = Path(__file__).parents[2]
SECTIONS = ["Open gaps", "Quirks copied on purpose", "Deliberate deviations"]
TEXTS = {
    name: (ROOT / "envs" / name / "DIFFERENCES.md").read_text() for name in envs.list_environments()
}
LINES = [
    pytest.param(name, line, id=f"{name}: {line[:40]}".replace("\n", " "))
    for name, text in TEXTS.items()
    for line in re.split(r"\n- ", re.sub(r"\n## .*", "", text))[1:]
]


@pytest.mark.parametrize("name", TEXTS)
def test_there_are_three_sections_with_lines(name):
    sections = re.split(r"^## (.*)$", TEXTS[name], flags=re.MULTILINE)
    assert sections[1::2] == SECTIONS
    assert all("\n- " in section for section in sections[2::2])


@pytest.mark.parametrize(("name", "line"), LINES)
def test_a_line_names_tests_that_exist(name, line):
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", line)
    assert named
    assert len(named) == line.count("`test_"), "a name that is not file::test"
    for file, test in named:
        tree = ast.parse((ROOT / "tests" / "envs" / name / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
