"""Workloads: the environments and hyperparameters that every measured implementation shares."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

ROOT = Path(__file__).parent.parent
WARMUP_STEPS = 1_000  # with random actions
CAR = "td3_lightning/CarRacing-v0"


@dataclass(frozen=True)
class Workload:
    """An environment and the TD3 hyperparameters for it: one critic update per environment step."""

    title: str
    env_id: str
    hidden_dims: tuple[int, ...]
    batch_size: int
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    layer_norm: bool = False
    capacity: int = 1_000_000
    gamma: float = 0.99
    lr: float = 3e-4
    tau: float = 0.005
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_freq: int = 2
    exploration_noise: float = 0.1
    num_envs: int = 1
    is_td7: bool = False  # TD7 without policy checkpoints, which only td3_lightning trains here
    config: str = ""  # configuration with further settings, which only td3_lightning reads

    def make_env(self) -> gym.Env[Any, Any]:
        """Create the environment with `gym.make`."""
        if self.env_id == CAR and CAR not in gym.registry:
            _register_car_only()
        return gym.make(self.env_id, **self.env_kwargs)

    def with_layer_norm(self) -> "Workload":
        """Return the same workload with LayerNorm before each hidden ReLU of the actor and the critics."""
        return replace(self, title=f"{self.title}, LayerNorm", layer_norm=True)


PLAIN = {
    "L": Workload("LunarLanderContinuous-v3, networks 256-256, batch 256", "LunarLanderContinuous-v3", (256, 256), 256),
    "C": Workload("car, networks 512-256, batch 512", CAR, (512, 256), 512, {"track_seed": 123}),
}
HALFCHEETAH = Workload("HalfCheetah-v4, networks 256-256, batch 256", "HalfCheetah-v4", (256, 256), 256)
WIDE = replace(
    PLAIN["L"],
    title="LunarLanderContinuous-v3, networks 1024-1024, batch 1024",
    hidden_dims=(1024, 1024),
    batch_size=1024,
)
OURS_ONLY = {
    "T": replace(PLAIN["L"], title="LunarLanderContinuous-v3, TD7 with networks 256-256, batch 256", is_td7=True),
    "P": Workload(
        "car from pixels, batch 64 (car_pixels.yaml)",
        "CarRacing-v3",
        (256, 256),
        64,
        capacity=20_000,
        config="car_pixels.yaml",
    ),
}
WORKLOADS = (
    PLAIN
    | {"H": HALFCHEETAH, "W": WIDE}
    | {f"{name}-LN": workload.with_layer_norm() for name, workload in PLAIN.items()}
    | OURS_ONLY
)
MILLISECONDS = (0.05, 1, 5, 20)  # costs of a step
SPENT = {"busy": "compute", "sleep": "sleep"}
WITH_WORKERS = {
    f"{kind}-{cost:g}": Workload(
        f"2 that {verb} for {cost:g} ms per step",
        "benchmarks.busy:Busy-v0",
        (256, 256),
        256,
        {"milliseconds": cost, "sleeps": kind == "sleep"},
        num_envs=2,
    )
    for kind, verb in SPENT.items()
    for cost in MILLISECONDS
} | {
    "cheetah": Workload("16 HalfCheetah-v5", "HalfCheetah-v5", (256, 256), 256, num_envs=16),
    "pixels": Workload(
        "2 cars from pixels", "CarRacing-v3", (256, 256), 64, capacity=20_000, num_envs=2, config="car_pixels.yaml"
    ),
}


def _register_car_only() -> None:
    """Register the car without importing `td3_lightning`, so that a baseline does not pay for that import."""
    package = ModuleType("td3_lightning")
    package.__path__ = [str(ROOT / "td3_lightning")]
    sys.modules["td3_lightning"] = package
    gym.register(CAR, "td3_lightning.envs.car_racing:CarRacing", max_episode_steps=1000)
