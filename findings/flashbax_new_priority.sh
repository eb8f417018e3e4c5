#!/usr/bin/env bash
# flashbax rounds the priority of new transitions down to a whole number: they are replayed less often than the old ones with the highest priority.
#
# Versions: flashbax 0.1.3, JAX 0.10.2, NumPy 2.4.6.
#
# Prioritized replay gives each new transition the highest priority so far, "in order to guarantee that all experience is seen at least once"
# (Schaul et al.). flashbax says that it "assigns the maximum recorded priority from the sum tree". It records the right maximum, a float, but
# it writes the maximum into an array that has the data type of the indices, int32. So 1.93 becomes 1, and 1.99 becomes 1 as well.
# A priority is abs(error) ** 0.6 by default, and the recorded maximum begins with 1. As long as no error was above 2 ** (1 / 0.6) = 3.17, new
# transitions have the priority of an error of 1. This is in all three prioritized buffers: of items, of transitions, and of trajectories.
# Here, 16 old transitions have the same error, the largest one so far, and 16 new ones follow. One expects the same rate for all of them.
# Consequence: with errors of 1 to 3, old transitions crowd out the new ones, which were never trained on. There is no warning. Call
# set_priorities for the new indices after add().
#
# Output:
#   items, error 1.0: recorded maximum 1.00, priority of a new one 1.00, replayed 1.00 times as often as an old one
#   items, error 3.0: recorded maximum 1.93, priority of a new one 1.00, replayed 0.52 times as often as an old one
#   items, error 3.2: recorded maximum 2.01, priority of a new one 2.00, replayed 1.00 times as often as an old one
#   items, error 6.0: recorded maximum 2.93, priority of a new one 2.00, replayed 0.68 times as often as an old one
#   transitions, error 3.0: recorded maximum 1.93, priority of a new one 1.00, replayed 0.52 times as often as an old one
#   trajectories, error 3.0: recorded maximum 1.93, priority of a new one 1.00, replayed 0.52 times as often as an old one
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile flashbax==0.1.3 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import flashbax
import jax
import jax.numpy as jnp
import numpy as np

OLD = NEW = 16


def replay(name, buffer, error, leading, length):
    """Fill a buffer, set the priorities of the old part, add the new part, and return what happens to the new one."""

    def append(state, number):
        zeros = jnp.zeros((*leading, number))
        return jax.jit(buffer.add)(state, {"obs": zeros})

    state = append(buffer.init({"obs": jnp.zeros(())}), OLD + length - 1)
    state = buffer.set_priorities(state, jnp.arange(OLD), jnp.full(OLD, error))
    highest = float(state.sum_tree_state.max_recorded_priority)
    state = append(state, NEW)
    sample = buffer.sample(state, jax.random.key(0))
    assert abs(highest - error**0.6) < 1e-5
    counts = np.bincount(np.asarray(sample.indices), minlength=OLD + NEW)
    assert len(counts) == OLD + NEW
    tree = state.sum_tree_state
    new = float(tree.nodes[2**tree.tree_depth - 1 + OLD])
    rate = float(counts[OLD:].mean() / counts[:OLD].mean())
    print(f"{name}, error {error}: recorded maximum {highest:.2f}, priority of a new one {new:.2f}, replayed {rate:.2f} times as often as an old one")
    return highest, new, rate


size = {"sample_batch_size": 20000}
items = flashbax.make_prioritised_item_buffer(max_length=20000, min_length=1, add_sequences=True, **size)
flat = flashbax.make_prioritised_flat_buffer(max_length=20000, min_length=1, add_sequences=True, **size)
trajectories = flashbax.make_prioritised_trajectory_buffer(
    add_batch_size=1, sample_sequence_length=4, period=1, min_length_time_axis=4, max_length_time_axis=20000, **size
)
results = [replay("items", items, error, (), 1) for error in (1.0, 3.0, 3.2, 6.0)]
results += [replay("transitions", flat, 3.0, (), 2), replay("trajectories", trajectories, 3.0, (1,), 4)]
lost = all(new == int(highest) and abs(rate - new / highest) < 0.02 for highest, new, rate in results)
raise SystemExit(not (lost and results[1][2] < 0.6))
PYTHON
