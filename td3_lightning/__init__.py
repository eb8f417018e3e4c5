"""TD3 (Twin Delayed DDPG) on PyTorch Lightning."""

import gymnasium

from td3_lightning.collector import Collector
from td3_lightning.data import ReplayData
from td3_lightning.encoders import Encoder, Trunk
from td3_lightning.errors import UsageError
from td3_lightning.module import TD3
from td3_lightning.networks import Actor, Critics
from td3_lightning.replay import Batch, Replay
from td3_lightning.schedules import Constant, Linear

__version__ = "0.1.0"
__all__ = [
    "TD3",
    "Actor",
    "Batch",
    "Collector",
    "Constant",
    "Critics",
    "Encoder",
    "Linear",
    "Replay",
    "ReplayData",
    "Trunk",
    "UsageError",
]

gymnasium.register(
    id="td3_lightning/CarRacing-v0",
    entry_point="td3_lightning.car_racing:CarRacing",
    max_episode_steps=1000,
    reward_threshold=900,
)
