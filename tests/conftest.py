"""Settings that must be in place before jax is imported."""

import os

# jaxlib's concurrency-optimised scheduler can hang vmapped loops on machines with few cores.
_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
os.environ.setdefault("MPLBACKEND", "Agg")
