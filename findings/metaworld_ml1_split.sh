#!/usr/bin/env bash
# Meta-World's ids ML1-train and ML1-test are the same environments, so the test of a trained agent plays the goals of its training.
#
# Versions: Meta-World 3.1.1, Gymnasium 1.4.0, MuJoCo 3.3.0, NumPy 2.4.6.
#
# One expects that Meta-World/ML1-train has the 50 training goals of the benchmark, and Meta-World/ML1-test 50 other ones: the class ML1
# documents that both sets have different goal positions. A loop registers both ids with a lambda that reads the loop's variable. It is
# "test" as soon as the loop has ended, so both ids make the test environments. No goal of metaworld.ML1(...).train_tasks is used. Training
# environments also should not end at a success, because Meta-World passes terminate_on_success=False for them. Those of the id do. The ids
# of ML10 and ML45 bind the variable. A pull request of the project (573, of February 2026) corrects this, but the newest release, 3.1.1, does not.
# Consequence: the score on held-out goals is a score on the goals of the training, and a gap between both is hidden. Episodes of the training
# are shorter than those of the benchmark, and their returns cannot be compared. Use metaworld.make_ml_envs_train("reach-v3", ...) and
# metaworld.make_ml_envs_test, which are right.
#
# Output:
#   gymnasium.make_vec, ML1-train: 0 of 50 goals are training goals, 50 test goals, an episode ends at a success: True
#   gymnasium.make_vec, ML1-test: 0 of 50 goals are training goals, 50 test goals, an episode ends at a success: True
#   make_ml_envs_train: 50 of 50 goals are training goals, 0 test goals, an episode ends at a success: False
#   make_ml_envs_test: 0 of 50 goals are training goals, 50 test goals, an episode ends at a success: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile metaworld==3.1.1 gymnasium==1.4.0 mujoco==3.3.0 numpy==2.4.6 packaging==26.4
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gymnasium as gym
import metaworld
import numpy as np

TASK, SEED, NUM_ENVS = "reach-v3", 0, 10


def examine(name, envs):
    """Return the numbers of training and test goals, and whether an episode terminates when the hand is at the goal."""
    goals = {task.data for tasks in envs.get_attr("tasks") for task in tasks}
    envs.call("toggle_sample_tasks_on_reset", True)
    envs.reset(seed=SEED)
    targets, ended, succeeded = np.array(envs.get_attr("_target_pos")), False, False
    action = np.zeros((NUM_ENVS, 4), np.float32)
    for _ in range(60):
        hands = np.array(envs.call("get_endeff_pos"))
        action[:, :3] = np.clip(10 * (targets - hands), -1, 1)  # move to the goal
        _, _, terminated, truncated, infos = envs.step(action)
        assert not truncated.any()
        ended = bool(terminated.any())
        succeeded = ended or bool(np.any(infos["success"] > 0))
        if succeeded:
            break
    assert succeeded
    envs.close()
    counts = len(goals & train), len(goals & test)
    print(f"{name}: {counts[0]} of {len(goals)} goals are training goals, {counts[1]} test goals, an episode ends at a success: {ended}")
    return *counts, ended


benchmark = metaworld.ML1(TASK, seed=SEED)
train, test = ({task.data for task in tasks} for tasks in (benchmark.train_tasks, benchmark.test_tasks))
assert len(train) == len(test) == 50 and not train & test
options = {"seed": SEED, "meta_batch_size": NUM_ENVS}
results = [
    examine(f"gymnasium.make_vec, ML1-{split}", gym.make_vec(f"Meta-World/ML1-{split}", env_name=TASK, vector_strategy="sync", **options))
    for split in ("train", "test")
]
results.append(examine("make_ml_envs_train", metaworld.make_ml_envs_train(TASK, **options)))
results.append(examine("make_ml_envs_test", metaworld.make_ml_envs_test(TASK, **options)))
raise SystemExit(results != [(0, 50, True), (0, 50, True), (50, 0, False), (0, 50, True)])
PYTHON
