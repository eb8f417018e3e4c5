"""CleanRL-style loop in JAX (https://github.com/vwxyzjn/cleanrl), reimplemented: flax, optax, two jitted steps."""

import itertools
import time
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from benchmarks.baselines.numpy_replay import NumpyReplay
from benchmarks.clock import Clock, stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload


def dense_relu(inputs: Any, width: int, layer_norm: bool) -> Any:
    """Apply a dense layer, LayerNorm if enabled, and ReLU; call it inside a compact module."""
    hidden = nn.Dense(width)(inputs)
    return nn.relu(nn.LayerNorm()(hidden) if layer_norm else hidden)


class QNetwork(nn.Module):
    """One critic."""

    hidden_dims: tuple[int, ...]
    layer_norm: bool

    @nn.compact
    def __call__(self, obs: Any, action: Any) -> Any:
        """Return Q-values (batch, 1)."""
        hidden = jnp.concatenate([obs, action], -1)
        for width in self.hidden_dims:
            hidden = dense_relu(hidden, width, self.layer_norm)
        return nn.Dense(1)(hidden)


class Actor(nn.Module):
    """The policy."""

    hidden_dims: tuple[int, ...]
    layer_norm: bool
    action_dim: int
    scale: Any
    bias: Any

    @nn.compact
    def __call__(self, obs: Any) -> Any:
        """Return actions (batch, action_dim)."""
        for width in self.hidden_dims:
            obs = dense_relu(obs, width, self.layer_norm)
        return nn.tanh(nn.Dense(self.action_dim)(obs)) * self.scale + self.bias


class State(TrainState):
    """Weights, optimizer state and target weights."""

    target: Any = None


class Losses(NamedTuple):
    """The two jitted gradient steps, closed over the constants."""

    workload: Workload
    actor: Actor
    qf: QNetwork
    low: Any
    high: Any

    @partial(jax.jit, static_argnums=0)
    def critics(self, actor: State, qf1: State, qf2: State, batch: Any, key: Any) -> Any:
        """Take one gradient step of both critics."""
        obs, action, next_obs, reward, terminated = batch
        settings = self.workload
        key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, action.shape) * settings.policy_noise
        noise = jnp.clip(noise, -settings.noise_clip, settings.noise_clip) * self.actor.scale
        next_action = jnp.clip(self.actor.apply(actor.target, next_obs) + noise, self.low, self.high)
        next_q = jnp.minimum(*(self.qf.apply(each.target, next_obs, next_action) for each in (qf1, qf2)))
        target_q = reward + (1 - terminated) * settings.gamma * next_q

        def loss(weights: Any) -> Any:
            q = self.qf.apply(weights, obs, action)
            return ((q - target_q) ** 2).mean(), q.mean()

        (loss1, mean1), grads1 = jax.value_and_grad(loss, has_aux=True)(qf1.params)
        (loss2, mean2), grads2 = jax.value_and_grad(loss, has_aux=True)(qf2.params)
        return qf1.apply_gradients(grads=grads1), qf2.apply_gradients(grads=grads2), loss1 + loss2, mean1, mean2, key

    @partial(jax.jit, static_argnums=0)
    def actors(self, actor: State, qf1: State, qf2: State, obs: Any) -> Any:
        """Take one gradient step of the actor and one Polyak step of the targets."""

        def loss(weights: Any) -> Any:
            return -self.qf.apply(qf1.params, obs, self.actor.apply(weights, obs)).mean()

        value, grads = jax.value_and_grad(loss)(actor.params)
        actor = actor.apply_gradients(grads=grads)
        tau = self.workload.tau
        averaged = [
            state.replace(target=optax.incremental_update(state.params, state.target, tau))
            for state in (actor, qf1, qf2)
        ]
        return (*averaged, value)

    def __hash__(self) -> int:
        return id(self.actor)

    def __eq__(self, other: object) -> bool:
        return self is other


def make_networks(env: Any, workload: Workload) -> tuple[Actor, QNetwork]:
    """Create the networks without weights."""
    low, high = np.array(env.action_space.low), np.array(env.action_space.high)
    widths, layer_norm = workload.hidden_dims, workload.layer_norm
    return Actor(widths, layer_norm, len(low), (high - low) / 2, (high + low) / 2), QNetwork(widths, layer_norm)


def make_state(module: Any, lr: float, key: Any, *inputs: Any) -> Any:
    """Initialize the weights of a network, its target and its optimizer."""
    weights = module.init(key, *inputs)
    return State.create(apply_fn=module.apply, params=weights, target=weights, tx=optax.adam(lr))


def train(workload: Workload, flags: list[str]) -> None:
    """Run the training loop without end."""
    env: Any = Clock(workload.make_env())
    box = env.action_space
    low, high = np.array(box.low), np.array(box.high)
    obs, _ = env.reset(seed=0)
    network, qf = make_networks(env, workload)
    key, actor_key, *qf_keys = jax.random.split(jax.random.PRNGKey(0), 4)
    actor = make_state(network, workload.lr, actor_key, obs)
    qf1, qf2 = (make_state(qf, workload.lr, qf_key, obs, low) for qf_key in qf_keys)
    losses = Losses(workload, network, qf, low, high)
    act = jax.jit(network.apply)
    replay = NumpyReplay(env, workload.capacity)
    rng, updates, start = np.random.default_rng(0), 0, time.time()
    stopwatch().watch(lambda: updates, replay.transition_bytes)

    for step in itertools.count(1):
        if step <= WARMUP_STEPS:
            action = box.sample()
        else:
            noise = rng.normal(0, network.scale * workload.exploration_noise).astype(np.float32)
            action = (np.asarray(act(actor.params, obs)) + noise).clip(low, high)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs=obs, action=action, next_obs=next_obs, reward=reward, terminated=terminated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step <= WARMUP_STEPS:
            continue
        batch = replay.sample(workload.batch_size)
        qf1, qf2, q_loss, mean1, mean2, key = losses.critics(actor, qf1, qf2, batch, key)
        updates += 1
        if updates % workload.policy_freq == 0:
            actor, qf1, qf2, actor_loss = losses.actors(actor, qf1, qf2, batch[0])
        if step % 100 == 0:
            numbers = [float(value) for value in (q_loss, mean1, mean2, actor_loss)]
            print("SPS:", int(step / (time.time() - start)), np.round(numbers, 3))
