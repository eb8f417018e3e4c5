"""What every contender trains on, and the settings that all of them share."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

ROOT = Path(__file__).parent.parent
WARMUP_STEPS = 1_000  # with random actions
CAR = "td3_lightning/CarRacing-v0"


@dataclass(frozen=True)
class Workload:
    """An environment, and a TD3 for it: one update for each step, the actor's at every second one."""

    title: str
    env_id: str
    hidden_dims: tuple[int, ...]
    batch_size: int
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    capacity: int = 1_000_000
    gamma: float = 0.99
    lr: float = 3e-4
    tau: float = 0.005
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_freq: int = 2
    exploration_noise: float = 0.1

    def make_env(self) -> gym.Env[Any, Any]:
        """The environment, as `gym.make` gives it."""
        if self.env_id == CAR and CAR not in gym.registry:
            _register_car_alone()
        return gym.make(self.env_id, **self.env_kwargs)


WORKLOADS = {
    "L": Workload("LunarLanderContinuous-v3, nets 256-256, batch 256", "LunarLanderContinuous-v3", (256, 256), 256),
    "C": Workload("the car, nets 512-256, batch 512", CAR, (512, 256), 512, {"track_seed": 123}),
}


def _register_car_alone() -> None:
    """Registers the car without importing our package, whose imports a rival need not wait for."""
    package = ModuleType("td3_lightning")
    package.__path__ = [str(ROOT / "td3_lightning")]
    sys.modules["td3_lightning"] = package
    gym.register(CAR, "td3_lightning.car_racing:CarRacing", max_episode_steps=1000)
