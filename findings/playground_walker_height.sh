#!/usr/bin/env bash
# MuJoCo Playground's Walker cannot see its height: the entry of the observation repeats the uprightness, and its reward depends on the height.
#
# Versions: MuJoCo Playground 0.2.0, MuJoCo and MJX 3.10.0, JAX 0.10.2, Brax 0.14.2, dm_control 1.0.43, NumPy 2.4.6.
#
# Playground re-implements the tasks of dm_control, and WalkerStand, WalkerWalk and WalkerRun have the same 24 numbers as there: 14 of the
# orientations, the height, 9 velocities. A variable named height is filled from the rotation of the torso instead of its position, so entry
# 14 is the cosine of the pitch, which is entry 0 already. The root's position is not observed either. The reward is right: it is as in
# dm_control, and three quarters of the reward for standing come from the height. All sizes agree, so nothing fails.
# Consequence: the task is partially observed. Two states with the same observation get rewards of 0.20 and 0.83, so a critic cannot tell
# their values apart, results do not compare with those of dm_control, and a policy of dm_control gets a cosine where it expects meters.
# The test lets a walker that lies in the air fall for one step, from two heights, in both packages.
#
# Output:
#   Playground: 50 resets, the torso is 1.30 to 1.30 m high, observed -1.00 to 1.00
#   Playground: lying 0.6 and 1.1 m above the floor, observations differ by 0.00, heights observed 0.00 and 0.00, rewards 0.20 and 0.83
#   dm_control: lying 0.6 and 1.1 m above the floor, observations differ by 0.50, heights observed 0.60 and 1.10, rewards 0.20 and 0.83
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
# Without dependencies, because a third of them is used here: Warp and the rest are some 500 MB.
"$folder/venv/bin/pip" install -qq --no-compile --no-deps playground==0.2.0 mujoco==3.10.0 mujoco-mjx==3.10.0 jax==0.10.2 jaxlib==0.10.2 \
    brax==0.14.2 dm-control==1.0.43 numpy==2.4.6 absl-py==2.5.1 charset-normalizer==3.5.3 dm-env==1.6 etils==1.15.0 flax==0.12.8 glfw==2.11.0 \
    jaxopt==0.8.5 lxml==6.1.3 ml-collections==1.1.0 ml-dtypes==0.6.0 msgpack==1.2.4 opt-einsum==3.4.0 pillow==13.0.0 pygments==2.21.0 \
    pyyaml==6.0.4 rich==15.0.0 scipy==1.17.1 setuptools==84.2.1 tqdm==4.70.1 trimesh==5.2.0 typing-extensions==4.16.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | { grep -v '^Failed to import' || true; }
import jax
import numpy as np
from dm_control import suite
from mujoco_playground import registry

jax.config.update("jax_disable_most_optimizations", True)  # compiles faster
HEIGHT, UPRIGHT, RESETS, ABOVE = 14, 0, 50, np.array([0.6, 1.1])  # entries of the observation, and heights above the floor in m


def lying(height, torso):
    """Return the positions of a walker whose torso and legs are horizontal, at a height above the floor."""
    qpos = np.zeros(9)
    qpos[0], qpos[2] = height - torso, np.pi / 2  # the root's joints: z, x, pitch
    return qpos


def describe(name, obs, rewards):
    """Print the differences between two observations and their rewards. Return the difference and the rewards."""
    difference = np.abs(obs[0] - obs[1]).max()
    text = f"observations differ by {difference:.2f}, heights observed {obs[0][HEIGHT]:.2f} and {obs[1][HEIGHT]:.2f}"
    print(f"{name}: lying {ABOVE[0]} and {ABOVE[1]} m above the floor, {text}, rewards {rewards[0]:.2f} and {rewards[1]:.2f}")
    return difference, rewards


task = registry.load("WalkerStand", config_overrides={"impl": "jax"})
body = task.mj_model.body("torso")
assert [task.mj_model.joint(index).name for index in range(3)] == ["rootz", "rootx", "rooty"]
state = jax.jit(jax.vmap(task.reset))(jax.random.split(jax.random.PRNGKey(0), RESETS))
torso, seen, upright = (np.array(each) for each in (state.data.xpos[:, body.id, 2], state.obs[:, HEIGHT], state.obs[:, UPRIGHT]))
print(f"Playground: {RESETS} resets, the torso is {torso.min():.2f} to {torso.max():.2f} m high, observed {seen.min():.2f} to {seen.max():.2f}")

state = jax.tree.map(lambda leaf: leaf[:2], state)
qpos = jax.numpy.array([lying(height, body.pos[2]) for height in ABOVE])
state = state.replace(data=state.data.replace(qpos=qpos, qvel=0 * state.data.qvel))
state = jax.jit(jax.vmap(task.step))(state, np.zeros((2, task.action_size)))
port = describe("Playground", np.array(state.obs), np.array(state.reward))

env = suite.load("walker", "stand", task_kwargs={"random": 0})
steps = []
for height in ABOVE:
    env.reset()
    with env.physics.reset_context():
        env.physics.data.qpos[:] = lying(height, env.physics.named.model.body_pos["torso", "z"])
        env.physics.data.qvel[:] = 0
    steps.append(env.step(np.zeros(6)))
obs = [np.concatenate([np.atleast_1d(each) for each in step.observation.values()]) for step in steps]
original = describe("dm_control", obs, [step.reward for step in steps])

assert np.allclose(port[1], original[1], atol=0.01) and original[0] > 0.4 and np.ptp(torso) < 0.01
raise SystemExit(not (port[0] < 1e-4 and np.ptp(port[1]) > 0.5 and np.array_equal(seen, upright) and np.ptp(seen) > 1))
PYTHON
