"""EnvPool's environments, seeded at each reset."""

from functools import partial
from typing import Any

import gymnasium as gym

from td3_lightning.errors import UsageError, one_line, refuse

INTERNAL = {"env_id", "players", "elapsed_step"}  # what EnvPool adds to each info


class SeededEnvPool(gym.vector.VectorWrapper):
    """Make a new pool at each reset with a seed, because EnvPool takes its seed at construction.

    Args:
        env_id: EnvPool's id of the environment, for example "HalfCheetah-v5".
        num_envs: Number of environments.
        settings: EnvPool's options, for example `num_threads` or `max_episode_steps`.

    Raises:
        UsageError: EnvPool is not installed.
    """

    def __init__(self, env_id: str, num_envs: int, **settings: Any) -> None:
        if not isinstance(env_id, str):
            raise refuse(
                "data.env_id with data.vector_env envpool", "an id", env_id, "Use HalfCheetah-v5, for example."
            )
        try:
            import envpool
        except ImportError as error:
            raise UsageError(
                f"data.vector_env envpool requires EnvPool, which cannot be imported ({one_line(error)}). Install "
                "td3_lightning[envpool]."
            ) from error
        self._make = partial(envpool.make_gymnasium, env_id, num_envs=num_envs, **settings)
        super().__init__(self._make())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, in a new pool if there is a seed. Environment i has the seed `seed + i`."""
        if seed is not None:
            self.env.close()
            self.env = self._make(seed=seed)
        return self.env.reset(options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and return their infos without EnvPool's own entries."""
        *results, info = self.env.step(actions)
        return *results, {name: value for name, value in info.items() if name not in INTERNAL}
