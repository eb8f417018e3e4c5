#!/usr/bin/env bash
# Gymnasium's vector environments in JAX: when one environment resets, all the others lose their step, but keep its reward and its end.
#
# Versions: Gymnasium 1.4.0, JAX 0.10.2, Flax 0.12.8, NumPy 2.4.6.
#
# One expects that the environments of a vector do not touch each other. FunctionalJaxVectorEnv computes the transitions of all, but if one
# has to reset, it writes its initial state into the old states, not into the next ones. So each other environment stays where it was,
# returns its last observation again, and gets the reward and the termination of the transition that was thrown away. The first test is
# phys2d/CartPole-v1 of make_vec, the second one a cart with a continuous force, a task of one's own with the interface FuncEnv.
# phys2d/Pendulum-v0 ends all episodes in the same step, so nothing shows there. The documentation says none of this.
# Consequence: the more environments, the slower each one moves: with 64, nearly half of the steps have no effect, and nearly half of the
# terminations come with a state that is no end. Episodes become longer, and a replay buffer learns that actions do nothing.
#
# Output:
#   phys2d/CartPole-v1, 4 environments: 11% of the steps repeat the observation, 12% of the ends are in states that are no end
#   phys2d/CartPole-v1, 64 environments: 44% of the steps repeat the observation, 46% of the ends are in states that are no end
#   own task, 64 environments: 40% of the steps repeat the observation, 42% of the ends are in states that are no end
#   own task in FunctionalJaxEnv and SyncVectorEnv: 0% of the steps repeat the observation, 0% of the ends are in states that are no end
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gymnasium==1.4.0 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.functional_jax_env import FunctionalJaxEnv, FunctionalJaxVectorEnv
from gymnasium.experimental.functional import FuncEnv

STEPS = 120


class Cart(FuncEnv):
    """A cart with a position and a velocity, which a force moves. An episode ends at a distance of 1."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def initial(self, rng, params=None):
        return jax.random.uniform(rng, (2,), minval=-0.5, maxval=0.5)

    def transition(self, state, action, rng, params=None):
        return state + 0.1 * jnp.stack([state[1], action[0]])

    def observation(self, state, rng, params=None):
        return state

    def reward(self, state, action, next_state, rng, params=None):
        return -(next_state[0] ** 2)

    def terminal(self, state, rng, params=None):
        return abs(state[0]) > 1


def cart_ends(obs):
    """Return which observations of Cart are beyond its limit."""
    return abs(obs[:, 0]) > 1


def pole_ends(obs):
    """Return which observations of CartPole are beyond its limits, with a margin for rounding."""
    return (abs(obs[:, 0]) > 2.399) | (abs(obs[:, 2]) > 0.2094)


def play(name, envs, ends):
    """Play random actions. Return the shares of repeated observations and of terminations in states that are no end."""
    envs.action_space.seed(1)
    obs, done = np.array(envs.reset(seed=0)[0]), np.zeros(envs.num_envs, bool)
    steps = repeats = terminations = wrong = 0
    for _ in range(STEPS):
        next_obs, _, terminated, truncated, _ = (np.array(each) for each in envs.step(envs.action_space.sample()))
        repeats += (next_obs == obs).all(1)[~done].sum()  # without the steps that reset
        steps += (~done).sum()
        terminations += terminated.sum()
        wrong += (terminated & ~ends(next_obs)).sum()
        obs, done = next_obs, terminated | truncated
    shares = repeats / steps, wrong / terminations
    print(f"{name}: {shares[0]:.0%} of the steps repeat the observation, {shares[1]:.0%} of the ends are in states that are no end")
    return shares


def vector(num_envs):
    """Return carts in the vector environment of Gymnasium."""
    task = Cart()
    task.transform(jax.jit)
    return FunctionalJaxVectorEnv(task, num_envs)


def single():
    """Return one cart."""
    task = Cart()
    task.transform(jax.jit)
    return FunctionalJaxEnv(task)


few = play("phys2d/CartPole-v1, 4 environments", gym.make_vec("phys2d/CartPole-v1", num_envs=4), pole_ends)
many = play("phys2d/CartPole-v1, 64 environments", gym.make_vec("phys2d/CartPole-v1", num_envs=64), pole_ends)
own = play("own task, 64 environments", vector(64), cart_ends)
right = play("own task in FunctionalJaxEnv and SyncVectorEnv", gym.vector.SyncVectorEnv([single] * 4), cart_ends)
assert min(*many, *own) > 0.2 and right == (0, 0)
raise SystemExit(not 0 < few[0] < many[0])
PYTHON
