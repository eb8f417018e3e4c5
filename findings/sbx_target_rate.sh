#!/usr/bin/env bash
# TD3 of SBX moves its target networks after each update of the critics, not only with the actor, so tau acts policy_delay times as often.
#
# Versions: SBX 0.28.0, Stable-Baselines3 2.9.2, JAX 0.10.2, Gymnasium 1.4.0, NumPy 2.4.6, PyTorch 2.13.0.
#
# One expects the delayed updates of TD3, and those of Stable-Baselines3, whose interface and names SBX shares: the actor and all targets
# change in every policy_delay-th update. In SBX the actor does, but the targets of the critics and of the actor move in each update. After
# 100 updates of the same size, the targets have taken 100 steps instead of 100 / policy_delay. With the defaults, tau 0.005 and
# policy_delay 2, they keep 0.995^100 = 61% of their old weights instead of 0.995^50 = 78%. A larger policy_delay slows down the targets in
# one library and not in the other.
# Consequence: the same settings are another algorithm. A comparison of SBX with Stable-Baselines3 or with the paper also compares two rates of
# the targets. For the paper's targets in SBX, divide tau by policy_delay.
#
# Output:
#   stable_baselines3, policy_delay 2: of 100 updates 50 change the actor, 50 its target and 50 the target of the critics
#   sbx, policy_delay 2: of 100 updates 50 change the actor, 100 its target and 100 the target of the critics
#   stable_baselines3, policy_delay 10: of 100 updates 10 change the actor, 10 its target and 10 the target of the critics
#   sbx, policy_delay 10: of 100 updates 10 change the actor, 100 its target and 100 the target of the critics
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0
"$folder/venv/bin/pip" install -qq sbx-rl==0.28.0 stable-baselines3==2.9.2 jax==0.10.2 gymnasium==1.4.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import jax
import numpy as np
import sbx
import stable_baselines3

UPDATES = 100


def weights(model):
    """Return the actor, its target and the target of the critics, as one vector each."""
    if isinstance(model, stable_baselines3.TD3):
        networks = model.actor, model.actor_target, model.critic_target
        return [np.concatenate([each.detach().numpy().ravel() for each in one.parameters()]) for one in networks]
    actor, critics = model.policy.actor_state, model.policy.qf_state
    trees = actor.params, actor.target_params, critics.target_params
    return [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in trees]


def changes(library, delay):
    """Return in how many of 100 updates the actor, its target and the target of the critics change."""
    model = library.TD3("MlpPolicy", "Pendulum-v1", learning_starts=50, batch_size=32, policy_delay=delay, seed=0, gradient_steps=0)
    model.learn(60)  # fills the replay buffer
    before, counts = weights(model), np.zeros(3, int)
    for _ in range(UPDATES):
        model.train(gradient_steps=1, batch_size=32)
        after = weights(model)
        counts += [not np.array_equal(old, new) for old, new in zip(before, after)]
        before = after
    actor, actor_target, critic_target = counts.tolist()
    name = library.__name__
    print(f"{name}, policy_delay {delay}: of {UPDATES} updates {actor} change the actor,", end=" ")
    print(f"{actor_target} its target and {critic_target} the target of the critics")
    return [actor, actor_target, critic_target]


seen = {delay: [changes(library, delay) for library in (stable_baselines3, sbx)] for delay in (2, 10)}
expected = {delay: [[UPDATES // delay] * 3, [UPDATES // delay, UPDATES, UPDATES]] for delay in (2, 10)}
raise SystemExit(seen != expected)
PYTHON
