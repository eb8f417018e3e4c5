"""SBX (https://github.com/araffin/sbx), Stable-Baselines3 in JAX: `TD3.learn`."""

from sbx import TD3

from benchmarks.baselines.sb3 import exploration, learn
from benchmarks.clock import Clock
from benchmarks.workloads import WARMUP_STEPS, Workload


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env = Clock(workload.make_env())
    model = TD3(
        "MlpPolicy",
        env,
        learning_rate=workload.lr,
        qf_learning_rate=workload.lr,
        buffer_size=workload.capacity,
        learning_starts=WARMUP_STEPS,
        batch_size=workload.batch_size,
        tau=workload.tau,
        gamma=workload.gamma,
        train_freq=1,
        gradient_steps=1,
        action_noise=exploration(env, workload),
        policy_delay=workload.policy_freq,
        target_policy_noise=workload.policy_noise,
        target_noise_clip=workload.noise_clip,
        policy_kwargs={"net_arch": list(workload.hidden_dims)},
    )
    learn(model)
