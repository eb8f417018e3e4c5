#!/usr/bin/env bash
# A MuJoCo model that is saved as XML and loaded again is another model: numbers keep 6 digits.
#
# Versions: MuJoCo 4.0.0, Gymnasium 1.4.0 (its model of Ant).
#
# A randomized model is saved with MjSpec.to_xml, to repeat a run or an evaluation later. One expects XML to carry the numbers of the
# specification, which are float64. The writer rounds each number to 6 significant digits, and no setting of the API changes that. The
# masses of the Ant whose sizes were randomized differ by 4e-6. The simulation is chaotic, so the difference grows: with the same controls,
# a joint position differs by more than 0.1 after 5 s. A time step such as 1/240 s becomes 0.00416667 s.
# mj_saveModel keeps all digits, in a binary file for one version of MuJoCo, and its simulation is equal in all bits.
# Consequence: a domain that was saved as XML does not reproduce the episode in which a policy failed.
#
# Output:
#   time step of 1/240 s after saving: 0.00416667
#   XML: largest relative difference of a mass 4.2e-06, of the positions after 5 s more than 0.1
#   binary: largest relative difference of a mass 0.0e+00, of the positions after 5 s 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq gymnasium==1.4.0 mujoco==4.0.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/model.mjb" 2>/dev/null <<'PYTHON'
import importlib.util
import sys
from pathlib import Path

import mujoco
import numpy as np

spec = mujoco.MjSpec()
spec.option.timestep = 1 / 240
timestep = mujoco.MjModel.from_xml_string(spec.to_xml()).opt.timestep
print(f"time step of 1/240 s after saving: {timestep:.10g}")

gymnasium = Path(importlib.util.find_spec("gymnasium").origin).parent
spec = mujoco.MjSpec.from_file(str(gymnasium / "envs/mujoco/assets/ant.xml"))
rng = np.random.default_rng(0)
for geom in spec.geoms:
    geom.size = geom.size * rng.uniform(0.9, 1.1)
model = spec.compile()
mujoco.mj_saveModel(model, sys.argv[1])


def positions(model):
    """Return the joint positions after 500 steps of 0.01 s with random controls."""
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(500):
        data.ctrl[:] = rng.uniform(-1, 1, model.nu)
        mujoco.mj_step(model, data)
    return data.qpos.copy()


def compare(name, copy):
    mass = np.abs(copy.body_mass[1:] / model.body_mass[1:] - 1).max()
    position = np.abs(positions(copy) - positions(model)).max()
    print(f"{name}: largest relative difference of a mass {mass:.1e},", end=" ")
    print("of the positions after 5 s", "more than 0.1" if position > 0.1 else position)
    return mass, position


xml = compare("XML", mujoco.MjModel.from_xml_string(spec.to_xml()))
binary = compare("binary", mujoco.MjModel.from_binary_path(sys.argv[1]))
raise SystemExit(not (timestep == 0.00416667 and 1e-7 < xml[0] < 1e-4 and xml[1] > 0.1 and binary == (0, 0)))
PYTHON
