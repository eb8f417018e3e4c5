#!/usr/bin/env bash
# DI-engine's n-step returns: the new pipeline adds the rewards of n steps, but bootstraps one step ahead, and the old one forgets a discount at each cut.
#
# Versions: DI-engine 0.5.3, PyTorch 2.13.0, DI-treetensor 0.5.0, DI-toolkit 0.2.1, gym 0.25.1 (DI-engine's pin), NumPy 1.26.4.
#
# One expects the sum of n discounted rewards, plus gamma^n times the value n steps later, or fewer steps before an end.
# New pipeline (ding.framework, DI-engine's examples dqn_nstep, c51_nstep, d4pg, and its DQNAgent): nstep_reward_enhancer sums the rewards and sets the
# discount of the value, but leaves next_obs and done, which are those of one step. So a reward is counted up to n times, and each step of
# the bootstrap is discounted n times. Before an end, it leaves out the reward of the last step, and the window of the last step takes the
# rewards of the next episode, or of the next environment, whose transitions follow in the same list.
# Old pipeline (serial_pipeline, whose collector cuts trajectories into pieces of n_sample / collector_env_num steps): get_nstep_return_data shortens
# windows at the end of a piece, and stores a discount for the last n, which has one factor too few. The docstring of v_nstep_td_error says that
# it is for windows with fewer than n steps. With one window step left, it is gamma^0, so the value is not discounted at all.
# Here, n = 3 and gamma = 0.9, a table of values is set to the mean target of each state, which is computed by DI-engine, again and again.
# New: an episode has the states from 10 to 15, and ends. Old: a state that is never left, and a reward of 1 per step, so its value is 10. A piece has 8
# steps, which is that of the LunarLander configuration, or 1, which is that of DQN's default of 8 samples with 8 environments.
# Consequence: a learner with n-step returns aims at values of another task, in which, e.g., an end is cheap or far away, and comparisons of n = 1 with n = 3
# measure this. With short pieces, the values diverge. Use n = 1, or compute rewards, next_obs, done and value_gamma from whole episodes.
#
# Output:
#   new, state:                        10    11    12    13    14    15
#   new, next state, n = 3:            11    12    13    14    15    16
#   new, reward at each step, value: 7.93  7.16  6.11  4.66  3.41  2.68
#   new, reward at each step, right: 4.69  4.10  3.44  2.71  1.90  1.00
#   new, reward at last step, value: 0.28  0.39  0.53  0.73  0.90  1.00
#   new, reward at last step, right: 0.59  0.66  0.73  0.81  0.90  1.00
#   old, piece of 8: powers of gamma [3, 3, 3, 3, 3, 2, 1, 0], right [3, 3, 3, 3, 3, 3, 2, 1], value after 100 updates 11.65, after 1000 11.65, right 10.00
#   old, piece of 1: powers of gamma [0], right [1], value after 100 updates 100.00, after 1000 1000.00, right 10.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile torch==2.13.0 numpy==1.26.4
# Without dependencies, because DI-engine's pins contradict those of PyTorch, and the search for versions takes long.
"$folder/venv/bin/pip" install -qq --no-compile --no-deps DI-engine==0.5.3 DI-toolkit==0.2.1 DI-treetensor==0.5.0 Farama-Notifications==0.0.6 Flask==2.0.3 \
    PyYAML==6.0.4 Pygments==2.21.0 URLObject==3.0.0 Werkzeug==2.0.3 annotated-types==0.8.0 async-timeout==5.0.1 certifi==2026.10.19.post1 cffi==2.1.1 chardet==4.0.0 \
    charset-normalizer==3.5.3 click==8.5.1 cloudpickle==3.1.3 contourpy==1.3.3 cycler==0.12.1 deprecation==2.1.0 dill==0.4.1 docker-pycreds==0.4.0 \
    easydict==1.14 einops==0.8.2 enum-tools==0.13.0 fonttools==4.68.0 graphviz==0.21 gym-notices==0.1.0 gym==0.25.1 gymnasium==1.4.0 h5py==3.16.0 \
    hbutils==0.14.2 hickle==5.0.3 idna==3.20 itsdangerous==2.2.0 kiwisolver==1.5.1 matplotlib==3.11.2 mpire==2.10.2 opencv-python-headless==5.0.0.93 \
    packaging==26.4 pillow==13.0.0 platformdirs==4.14.9 protobuf==5.29.6 psutil==7.2.2 pydantic==2.14.4 pydantic_core==2.50.5 pynng==0.9.0 \
    pyparsing==3.3.3 python-dateutil==4.0.0 redis==8.1.0 requests==2.34.2 rich==15.0.0 sentry-sdk==2.75.0 setproctitle==1.3.8 setuptools==66.1.1 \
    six==1.17.0 sniffio==1.3.1 tabulate==0.10.0 tensorboardX==2.6.5 tqdm==4.70.1 treevalue==1.5.0 trueskill==0.4.5 typing-inspection==0.4.5 \
    typing_extensions==4.16.0 urllib3==2.8.0 wandb==0.19.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON' | { grep -E '^(new|old), ' || true; }
import numpy as np
import torch
import treetensor.torch as ttorch
from ding.framework import task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import nstep_reward_enhancer
from ding.policy.common_utils import default_preprocess_learn
from ding.rl_utils import get_nstep_return_data, nstep_return, nstep_return_data
from easydict import EasyDict

torch.set_num_threads(1)
GAMMA, STEPS, FIRST, END = 0.9, 3, 10, 16


def pack(state, next_state, reward, done):
    """Return a transition with the keys and shapes of those that DI-engine collects for DQN."""
    row = {"obs": torch.tensor([state]), "next_obs": torch.tensor([next_state]), "action": torch.tensor([0])}
    return row | {"reward": torch.tensor([reward]), "done": torch.tensor(done)}


def learn(rows, updates):
    """Return the values of all states after some updates with the targets that DI-engine's DQN computes."""
    data = default_preprocess_learn(rows, use_nstep=True)
    values = torch.zeros(END + 1)
    obs, next_obs, discount = (data[name].flatten() for name in ("obs", "next_obs", "value_gamma"))
    for _ in range(updates):
        target = nstep_return(nstep_return_data(data["reward"], values[next_obs], data["done"]), GAMMA, STEPS, discount)
        for state in obs.unique():
            values[state] = target[obs == state].mean()
    return values.numpy()


def show(name, values, form):
    print(f"new, {name + ':':28}" + "".join(f"{value:6{form}}" for value in values))


differences = []
for pay in "each step", "last step":
    context = OnlineRLContext()
    rewards = [1.0 if pay == "each step" or state + 1 == END else 0.0 for state in range(FIRST, END)]
    episode = [(state, state + 1, reward, state + 1 == END) for state, reward in zip(range(FIRST, END), rewards)]
    context.trajectories = [ttorch.as_tensor(pack(*step)) for step in episode * 50]
    with task.start(async_mode=False, ctx=context):
        nstep_reward_enhancer(EasyDict(policy={"nstep": STEPS, "discount_factor": GAMMA}))(context)
    values = learn(context.trajectories, 100)[FIRST:END]
    right = [sum(GAMMA**ahead * reward for ahead, reward in enumerate(rewards[index:])) for index in range(END - FIRST)]
    if not differences:
        show("state", range(FIRST, END), ".0f")
        show(f"next state, n = {STEPS}", [row.next_obs.item() for row in context.trajectories[: END - FIRST]], ".0f")
    show(f"reward at {pay}, value", values, ".2f")
    show(f"reward at {pay}, right", right, ".2f")
    differences.append(np.abs(values - right).max())
found = []
for length in 8, 1:
    rows = get_nstep_return_data([pack(0, 0, 1.0, False) for _ in range(length)], STEPS, gamma=GAMMA)
    powers = np.rint(np.log([row["value_gamma"] for row in rows]) / np.log(GAMMA)).astype(int).tolist()
    right = [min(STEPS, length - index) for index in range(length)]
    rows = [row | {"value_gamma": torch.tensor([row["value_gamma"]])} for row in rows]
    first, second = (learn(rows, updates)[0] for updates in (100, 1000))
    text = f"value after 100 updates {first:.2f}, after 1000 {second:.2f}, right {1 / (1 - GAMMA):.2f}"
    print(f"old, piece of {length}: powers of gamma {powers}, right {right}, {text}", flush=True)
    found.append((powers == [power - (power < STEPS or index == length - STEPS) for index, power in enumerate(right)], first, second))
raise SystemExit(not (min(differences) > 0.1 and all(each[0] for each in found) and found[0][2] > 11 and found[1][2] > 999))
PYTHON
