#!/usr/bin/env bash
# gym-electric-motor's CosSinProcessor mixes up the first observation of each episode when it removes the angle.
#
# Versions: gym-electric-motor 3.0.3, Gymnasium 1.4.0, NumPy 2.4.6, SciPy 1.17.1.
#
# The wrapper adds the cosine and the sine of the rotor's angle to the observation, since an angle jumps from pi to -pi, and according to the
# documentation, remove_angle=True takes the angle itself out. A step does so, a reset does not: it returns the angle, the supply, the cosine and the
# sine. The environment picks its entries by position, so the length is right, and the values are not: the supply voltage's entry holds the angle,
# the cosine's holds the supply voltage and the sine's holds the cosine. Gymnasium's checker warns of an observation outside of its space when the
# angle is negative, and is silent otherwise. Without remove_angle, all is right.
# Consequence: in each episode, the first action answers a wrong angle, by default 45 degrees where the rotor is at 0, and the first transition in a
# replay buffer holds entries in another order. A current controller that uses the cosine and the sine starts with a voltage in a wrong direction.
# A wrapper that keeps the angle, and a state_filter without it, repairs this.
#
# Output:
#   remove_angle=True, angle 0.0: reset u_sup 0.000, cos 1.000, sin 1.000; step u_sup 1.000, cos 1.000, sin 0.030
#   remove_angle=True, angle 0.5: reset u_sup 0.159, cos 1.000, sin 0.878; step u_sup 1.000, cos 0.863, sin 0.506
#   remove_angle=True, angle 2.0: reset u_sup 0.637, cos 1.000, sin -0.416; step u_sup 1.000, cos -0.443, sin 0.896
#   state_filter, angle 0.0: reset u_sup 1.000, cos 1.000, sin 0.000; step u_sup 1.000, cos 1.000, sin 0.030
#   state_filter, angle 0.5: reset u_sup 1.000, cos 0.878, sin 0.479; step u_sup 1.000, cos 0.863, sin 0.506
#   state_filter, angle 2.0: reset u_sup 1.000, cos -0.416, sin 0.909; step u_sup 1.000, cos -0.443, sin 0.896
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gym-electric-motor==3.0.3 gymnasium==1.4.0 numpy==2.4.6 scipy==1.17.1 matplotlib==3.11.2
MPLBACKEND=Agg MPLCONFIGDIR=$folder "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gym_electric_motor as gem
import numpy as np
from gym_electric_motor.physical_system_wrappers import CosSinProcessor
from gym_electric_motor.physical_systems import PermanentMagnetSynchronousMotor

KEYS = ["u_sup", "cos(epsilon)", "sin(epsilon)"]
STATES = ["omega", "torque", "i_a", "i_b", "i_c", "i_sd", "i_sq", "u_a", "u_b", "u_c", "u_sd", "u_sq", *KEYS]


def first(name, angle, remove, states):
    """Return u_sup, the cosine and the sine after a reset and after a step of 0.03 rad."""
    initial = {"states": {"i_sq": 0.0, "i_sd": 0.0, "epsilon": angle}}
    env = gem.make(
        "Cont-CC-PMSM-v0",
        motor=PermanentMagnetSynchronousMotor(motor_initializer=initial),
        physical_system_wrappers=(CosSinProcessor(remove_angle=remove),),
        state_filter=states,
    )
    assert [str(each) for each in env.unwrapped.state_names] == STATES
    (start, _), _ = env.reset(seed=0)
    (state, _), *_ = env.step(np.zeros(3))
    values = [[float(each[STATES.index(key)]) for key in KEYS] for each in (start, state)]
    texts = [f"u_sup {supply:.3f}, cos {cos:.3f}, sin {sin:.3f}" for supply, cos, sin in values]
    print(f"{name}, angle {angle}: reset {texts[0]}; step {texts[1]}")
    right = [[1.0, np.cos(each), np.sin(each)] for each in (angle, angle + 0.03)]
    return [np.allclose(*pair, atol=1e-6) for pair in zip(values, right, strict=True)]


removed = [first("remove_angle=True", angle, True, None) for angle in (0.0, 0.5, 2.0)]
kept = [first("state_filter", angle, False, STATES) for angle in (0.0, 0.5, 2.0)]
raise SystemExit(not (removed == [[False, True]] * 3 and kept == [[True, True]] * 3))
PYTHON
