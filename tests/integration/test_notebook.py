"""Execute the notebook of the car on a short run."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SHORT = (
    "fit --config car.yaml --data.steps_per_epoch 20 --collector.warmup_steps 30 --data.eval_episodes 1 "
    "--data.env_kwargs.max_episode_steps 100"
)


@pytest.mark.timeout(300)
def test_notebook_trains_tests_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / "car.ipynb", as_version=4)
    noise = "robustness --observation_noise=[0] --action_noise=[0] --ckpt_path"
    short = {"EPOCHS = 10": "EPOCHS = 1", "LAPS = 20": "LAPS = 1", "robustness --ckpt_path": noise}
    for old, new in {**short, "fit --config car.yaml": SHORT}.items():
        assert sum(old in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new).replace("!{sys.executable}", "%run")  # in this process
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *_, curve, robustness, lap, policy = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "image/png" in curve[-1].data
    assert "frames" in "".join(output.get("text", "") for output in robustness)
    assert "video/mp4" in lap[-1].data or "<video" in lap[-1].data["text/html"]
    assert " of 322 tiles in " in policy[-1].text
    assert os.listdir(tmp_path / "lightning_logs" / "car") == ["version_0"]
