#!/usr/bin/env bash
# MuJoCo Playground's tasks do not start like those of dm_control: the pendulum never on one side, ball and humanoid in one state, the finger on a plane.
#
# Versions: MuJoCo Playground 0.2.0, MuJoCo and MJX 3.10.0, JAX 0.10.2, Brax 0.14.2, dm_control 1.0.43, NumPy 2.4.6.
#
# Playground calls its suite a re-implementation of dm_control's, and has a table of the tasks that are implemented. One expects the same distributions
# of initial states, and most tasks have them. These have not:
# The pendulum's angle is drawn from 0 to pi, instead of from -pi to pi. So it hangs on one side only.
# The ball of BallInCup is drawn from a box around the cup in dm_control. Playground ignores the key of the reset, so the ball always hangs at rest.
# The humanoid falls from a random pose in dm_control. In Playground, it always stands. A remark in the code says that this is to be done.
# The finger tasks draw the joints of the finger and the spinner with one and the same key. JAX then returns the same number twice, so the angle of the
# spinner is that of the finger's first joint, times 180/110. In dm_control, they are independent.
# Consequence: scores do not compare with those of dm_control under the same name. Many seeds or environments of BallInCup or Humanoid start as
# one, so a standard deviation over evaluation episodes of a deterministic policy is 0, and one recorded sequence of actions scores as well as a
# policy. Policies that are deployed in dm_control meet states that no episode began with. Set qpos after the reset, and call mjx.forward.
#
# Output:
#   PendulumSwingup, Playground: 0 of 100 episodes start left of the vertical, 100 right of it
#   PendulumSwingup, dm_control: 51 of 100 episodes start left of the vertical, 49 right of it
#   BallInCup, Playground: 1 different starts, the ball is within 0.00 m by 0.00 m
#   BallInCup, dm_control: 100 different starts, the ball is within 0.39 m by 0.30 m
#   HumanoidStand, Playground: 1 different starts, uprightness from 1.00 to 1.00
#   HumanoidStand, dm_control: 100 different starts, uprightness from -0.88 to 0.99
#   FingerSpin, Playground: first joint and spinner have a correlation of 1.00 in size
#   FingerSpin, dm_control: first joint and spinner have a correlation of 0.16 in size
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
RESETS = 100


def collect(port, domain, task):
    """Return the initial positions of the joints, (resets, joints), in Playground and in dm_control."""
    env = registry.load(port, config_overrides={"impl": "jax"})
    reset = jax.jit(lambda key: env.reset(key).data.qpos)
    ported = np.array([reset(key) for key in jax.random.split(jax.random.PRNGKey(0), RESETS)])
    env = suite.load(domain, task, task_kwargs={"random": 0})
    original = []
    for _ in range(RESETS):
        env.reset()
        original.append(env.physics.data.qpos.copy())
    return {"Playground": ported, "dm_control": np.array(original)}


seen = {}
for package, qpos in collect("PendulumSwingup", "pendulum", "swingup").items():
    angle = (np.rad2deg(qpos[:, 0]) + 180) % 360 - 180
    seen[package] = [np.mean(angle < 0)]
    print(f"PendulumSwingup, {package}: {np.sum(angle < 0)} of {RESETS} episodes start left of the vertical, {np.sum(angle > 0)} right of it")
for package, qpos in collect("BallInCup", "ball_in_cup", "catch").items():
    seen[package].append(len(np.unique(qpos, axis=0)))
    spread = np.ptp(qpos[:, 2:], axis=0)
    print(f"BallInCup, {package}: {seen[package][-1]} different starts, the ball is within {spread[0]:.2f} m by {spread[1]:.2f} m")
for package, qpos in collect("HumanoidStand", "humanoid", "stand").items():
    seen[package].append(len(np.unique(qpos, axis=0)))
    upright = 1 - 2 * (qpos[:, 4] ** 2 + qpos[:, 5] ** 2)  # the vertical component of the torso's axis, from its quaternion
    print(f"HumanoidStand, {package}: {seen[package][-1]} different starts, uprightness from {upright.min():.2f} to {upright.max():.2f}")
for package, qpos in collect("FingerSpin", "finger", "spin").items():
    seen[package].append(abs(np.corrcoef(qpos[:, 0], qpos[:, 2])[0, 1]))
    print(f"FingerSpin, {package}: first joint and spinner have a correlation of {seen[package][-1]:.2f} in size")
left, balls, humanoids, correlation = seen["dm_control"]
assert 0.3 < left < 0.7 and balls == humanoids == RESETS and correlation < 0.3
left, balls, humanoids, correlation = seen["Playground"]
raise SystemExit(not (left == 0 and balls == humanoids == 1 and correlation > 0.999))
PYTHON
