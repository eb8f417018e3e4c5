#!/usr/bin/env bash
# MuJoCo's Runge-Kutta integrator of order 4 has order 2 for the orientation of a free body, until 4.0.
#
# Versions: MuJoCo 3.17.0 and 4.0.0.
#
# A box that tumbles without forces is integrated for one second with integrator="RK4". The error is the largest difference from a run
# with steps of 1/8192 s. If the step is halved, an error of order n falls by 2^n. The angular velocity has order 4 in both versions. The
# quaternion has order 2 in 3.17.0 and order 4 in 4.0.0; at a step of 1/32 s its error differs by a factor of 677.
# Ant and Humanoid of Gymnasium use RK4 and have a free root joint, so their trajectories depend on the version from the first step on.
#
# Output:
#   MuJoCo 3.17.0: error at 1/32 s 6.2e-04, order of the orientation 2.00, 2.00, 2.00, of the angular velocity 4.00, 4.00, 4.00
#   MuJoCo 4.0.0: error at 1/32 s 9.2e-07, order of the orientation 3.91, 3.95, 3.98, of the angular velocity 4.00, 4.00, 4.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/order.py" <<'PYTHON'
import sys

import mujoco
import numpy as np

MODEL = mujoco.MjModel.from_xml_string("""
<mujoco>
  <option integrator="RK4" gravity="0 0 0"/>
  <worldbody><body><freejoint/><geom type="box" size="0.1 0.2 0.3" density="1000"/></body></worldbody>
</mujoco>""")


def tumble(steps):
    """Return the orientation and the angular velocity after one second."""
    MODEL.opt.timestep = 1 / steps
    data = mujoco.MjData(MODEL)
    data.qvel[3:] = [1, 5, 0.5]
    mujoco.mj_step(MODEL, data, steps)
    return data.qpos[3:].copy(), data.qvel[3:].copy()


exact = tumble(8192)
errors = np.array([[np.abs(a - b).max() for a, b in zip(tumble(n), exact)] for n in (32, 64, 128, 256)])
orientation, velocity = np.log2(errors[:-1] / errors[1:]).T
words = [", ".join(f"{order:.2f}" for order in orders) for orders in (orientation, velocity)]
print(f"MuJoCo {mujoco.__version__}: error at 1/32 s {errors[0, 0]:.1e}, order of the orientation {words[0]},", end=" ")
print(f"of the angular velocity {words[1]}")
expected = int(sys.argv[1])
raise SystemExit(not (np.abs(orientation - expected).max() < 0.2 and np.abs(velocity - 4).max() < 0.2))
PYTHON
for version_and_order in "3.17.0 2" "4.0.0 4"; do
  read -r version order <<< "$version_and_order"
  "${PYTHON:-python3}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -qq "mujoco==$version" numpy==2.4.6
  "$folder/$version/bin/python" "$folder/order.py" "$order"
done
