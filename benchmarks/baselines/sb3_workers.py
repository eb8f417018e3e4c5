"""Stable-Baselines3 with `SubprocVecEnv`: one process for each environment, and one update per environment step."""

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv

from benchmarks.baselines.sb3 import learn, new_model
from benchmarks.clock import stopwatch
from benchmarks.workloads import Workload


class CountSteps(BaseCallback):
    """Advance the stopwatch by one step of each environment."""

    def _on_step(self) -> bool:
        for _ in range(self.training_env.num_envs):
            stopwatch().tick()
        return True


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    if workload.config:
        raise SystemExit(f"Stable-Baselines3 has no settings that match {workload.config}.")
    env = SubprocVecEnv([workload.make_env] * workload.num_envs)
    model = new_model(workload, env, {"net_arch": list(workload.hidden_dims)}, gradient_steps=workload.num_envs)
    learn(model, CountSteps())
