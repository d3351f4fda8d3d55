"""Adapters between the faces of an environment, and exports to other libraries.

Importing this package sets one XLA flag while jax is not yet loaded: jaxlib 0.10's
concurrency-optimised scheduler can hang vmapped programs on machines with few cores.
"""

import os
import sys

_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
if "jax" not in sys.modules and _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
