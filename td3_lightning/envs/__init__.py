"""Environments: construction, wrappers, the check of each step, exact restoration, workers, and the car.

No file here knows an agent, a replay buffer or a Trainer. The import of this package registers the car with Gymnasium.
"""

from gymnasium.envs.registration import register, registry

if "td3_lightning/CarRacing-v0" not in registry:
    register(
        id="td3_lightning/CarRacing-v0",
        entry_point="td3_lightning.envs.car_racing:CarRacing",
        max_episode_steps=1000,
        reward_threshold=900,
    )
