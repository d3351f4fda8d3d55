"""The checks by subject; importing this package registers them, in the order of the report."""

from verification.conformance.checks import (  # noqa: F401, I001
    structure,
    values,
    episodes,
    determinism,
    rows,
    state,
    actions,
    noise,
    lifecycle,
    functional,
)
