"""PPO trainers and what is done with a trained policy."""

import envs.adapters  # noqa: F401 - before jax: it sets an XLA flag
