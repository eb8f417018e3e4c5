"""Small environments whose episodes depend on earlier ones, or on random generators that no seed controls."""

import random
from typing import Any

import gymnasium as gym
import numpy as np

from toys import Seeded


class Heavy(Seeded):
    """Keep a load that `reset` does not remove, and that no observation shows."""

    load = 0.0

    def step(self, action: Any) -> Any:
        self.load += float(action[0])
        obs, reward, *rest = super().step(action)
        return obs, reward + self.load, *rest


class Global(Seeded):
    """Draw the rewards from a global generator."""

    draw = staticmethod(random.random)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.draw(), *rest


class GlobalTorch(Global):
    """Draw the rewards from the global generator of PyTorch."""

    @staticmethod
    def draw() -> float:
        import torch  # workers do not import it

        return float(torch.rand(()))


class Hidden(Seeded):
    """Draw from a global generator in `reset`, with an effect that only the tenth step shows."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        self.length, self.goal = 20, float(np.random.random())  # noqa: NPY002
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.goal * (self.steps > 9), *rest


class Late(Hidden):
    """Draw from a global generator in the tenth step, for the first time."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = Seeded.reset(self, seed=seed)
        self.length, self.goal = 20, 0.0
        return obs, info

    def step(self, action: Any) -> Any:
        if self.steps == 9:
            self.goal = float(np.random.random())  # noqa: NPY002
        return super().step(action)


class SeedsGlobal(Global):
    """Seed the global generator in `reset`, which makes episodes reproducible."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        random.seed(seed)
        return super().reset(seed=seed)


class OwnModule(Global):
    """Draw from a generator of its own, which each process seeds alike."""

    generator = np.random.default_rng(0)

    def draw(self) -> float:  # type: ignore[override]
        return float(self.generator.random())


class OwnInstance(Seeded):
    """Draw the rewards from a generator that Gymnasium does not know, and that only a seeded reset creates."""

    rng: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.goal = self.rng.normal()
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + float(self.goal), *rest


for kind in (Heavy, Global, GlobalTorch, Hidden, Late, SeedsGlobal, OwnModule):
    gym.register(id=f"reset_toys/{kind.__name__}-v0", entry_point=kind, disable_env_checker=True)
