"""Without torch (`make setup`) the tests that need it are left out, and that is said aloud;
`make test` installs it."""

import importlib.util

NEED_TORCH = ["test_sb3.py", "test_torch_env.py"]
WITHOUT_TORCH = importlib.util.find_spec("torch") is None
collect_ignore = NEED_TORCH if WITHOUT_TORCH else []


def pytest_terminal_summary(terminalreporter):
    if WITHOUT_TORCH:
        terminalreporter.write_line(
            f"NOT RUN without torch: {', '.join(NEED_TORCH)}; run `make setup-torch`", yellow=True
        )
