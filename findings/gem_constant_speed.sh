#!/usr/bin/env bash
# gym-electric-motor: a new environment changes the speed of the motors in the environments that exist already.
#
# Versions: gym-electric-motor 3.0.3, Gymnasium 1.4.0, NumPy 2.4.6, SciPy 1.17.1.
#
# The documentation says that ConstantSpeedLoad holds a speed that is set beforehand, its argument omega_fixed in rad/s. The tasks of current control
# use this load by default, with 100 rad/s. One expects that each environment keeps its own speed. All loads of the class share one dictionary of
# initial values, a nested default that is copied shallowly, and the constructor writes the speed into it. So from its next reset, each environment
# turns at the speed of the load that was created last, and its omega_fixed still tells the old one. PolynomialStaticLoad with a random initial
# speed writes in the same way at each reset: an environment that should start at rest starts at the speed that another one has drawn.
# Consequence: training at 100 rad/s with a test environment at 200 rad/s runs both at 200 rad/s, and no number tells. In other processes, nothing
# happens. load_initializer={"states": {"omega": speed}} in each load, a dictionary of its own, keeps them apart.
#
# Output:
#   alone: load at 100 rad/s, speed 100 rad/s, final i_q -21.0 A, return -11.85
#   after an environment at 200 rad/s was created: load at 100 rad/s, speed 200 rad/s, final i_q 9.9 A, return -13.40
#   initial speeds of a load that starts at rest: [0, 0, 0], after resets of another load with random speeds: [-167, -167, -167]
#   with dictionaries of their own: speeds 100 and 200 rad/s
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --no-compile gym-electric-motor==3.0.3 gymnasium==1.4.0 numpy==2.4.6 scipy==1.17.1 matplotlib==3.11.2
MPLBACKEND=Agg MPLCONFIGDIR=$folder "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import gym_electric_motor as gem
import numpy as np
from gym_electric_motor.physical_systems.mechanical_loads import ConstantSpeedLoad, PolynomialStaticLoad
from gym_electric_motor.reference_generators import ConstReferenceGenerator, MultipleReferenceGenerator


def current_control(load):
    """Return the default task of current control with references of 0."""
    zeros = [ConstReferenceGenerator(reference_state=name, reference_value=0.0) for name in ("i_sd", "i_sq")]
    return gem.make("Cont-CC-PMSM-v0", load=load, reference_generator=MultipleReferenceGenerator(zeros))


def play(name, env):
    """Play an episode without voltage. Return the speed."""
    (state, _), _ = env.reset(seed=0)
    total, limits, names = 0.0, env.unwrapped.limits, [str(each) for each in env.unwrapped.state_names]
    speed = state[names.index("omega")] * limits[names.index("omega")]
    for _ in range(100):
        (state, _), reward, *_ = env.step(np.zeros(3))
        total += reward
    fixed, current = env.unwrapped.physical_system.mechanical_load.omega_fixed, (state * limits)[names.index("i_sq")]
    print(f"{name}: load at {fixed:.0f} rad/s, speed {speed:.0f} rad/s, final i_q {current:.1f} A, return {total:.2f}")
    return round(float(speed))


def starts(env):
    """Return the initial speeds of three episodes in rad/s."""
    return [round(float(env.reset()[0][0][0] * env.unwrapped.limits[0])) for _ in range(3)]


train = current_control(ConstantSpeedLoad(omega_fixed=100))
before = play("alone", train)
test = current_control(ConstantSpeedLoad(omega_fixed=200))
after = play("after an environment at 200 rad/s was created", train)

rest = gem.make("Cont-CC-PermExDc-v0", load=PolynomialStaticLoad())
first = starts(rest)
other = gem.make("Cont-CC-PermExDc-v0", load=PolynomialStaticLoad(load_initializer={"random_init": "uniform"}))
for seed in range(3):
    other.reset(seed=seed)
second = starts(rest)
print(f"initial speeds of a load that starts at rest: {first}, after resets of another load with random speeds: {second}")

own = [current_control(ConstantSpeedLoad(load_initializer={"states": {"omega": speed}})) for speed in (100.0, 200.0)]
apart = [starts(env)[0] for env in own]
print(f"with dictionaries of their own: speeds {apart[0]} and {apart[1]} rad/s")
leaked = first == [0] * 3 and second[0] != 0 and len(set(second)) == 1
raise SystemExit(not ((before, after) == (100, 200) and leaked and apart == [100, 200]))
PYTHON
