"""Settings that must be in place before jax is imported."""

import os

import envs.adapters  # noqa: F401 - sets an XLA flag

os.environ.setdefault("MPLBACKEND", "Agg")
