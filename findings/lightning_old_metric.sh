#!/usr/bin/env bash
# A metric that a validation does not log keeps its last value, and checkpoints and early stopping act on it.
#
# Versions: Lightning 2.6.6, PyTorch 2.13.0.
#
# An evaluation logs "lap_time" only if the agent finished a lap: in epochs 0 and 1 here, and never again. One expects that later epochs
# have no such metric, and that a callback that monitors it raises an error, as both callbacks do before the first value.
# trainer.callback_metrics keeps the value of epoch 1 for the rest of the run, while a logger receives nothing. ModelCheckpoint then puts
# that lap time into the names and scores of models that finish no lap. The model with the best lap time ties with them all. EarlyStopping
# counts each repetition as no improvement and ends the run, although no new lap time arrived.
# Consequence: best_model_score and file names attribute a result to a policy that never reached it.
#
# Output:
#   epochs that logged lap_time: 0 1
#   saved: epoch=0-lap_time=9.0 epoch=1-lap_time=8.0 epoch=2-lap_time=8.0 epoch=3-lap_time=8.0 epoch=4-lap_time=8.0
#   EarlyStopping(patience=3) stopped after epoch 4 of 20
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0 lightning==2.6.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader


class Driver(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Linear(1, 1)
        self.logged = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        return self.actor(batch).sum()

    def validation_step(self, batch, batch_idx):
        if self.current_epoch < 2:
            self.log("lap_time", 9.0 - self.current_epoch)
            self.logged.append(self.current_epoch)


driver, data = Driver(), DataLoader(torch.zeros(1, 1))
keep = ModelCheckpoint("saved", monitor="lap_time", mode="min", save_top_k=-1, filename="{epoch}-{lap_time:.1f}")
stop = EarlyStopping("lap_time", mode="min", patience=3)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
L.Trainer(max_epochs=20, num_sanity_val_steps=0, callbacks=[keep, stop], **quiet).fit(driver, data, data)
saved = sorted(path.stem for path in Path("saved").iterdir())
print("epochs that logged lap_time:", *driver.logged)
print("saved:", *saved)
print("EarlyStopping(patience=3) stopped after epoch", stop.stopped_epoch, "of 20")
expected = [f"epoch={epoch}-lap_time={value}" for epoch, value in enumerate((9.0, 8.0, 8.0, 8.0, 8.0))]
raise SystemExit(not (driver.logged == [0, 1] and saved == expected and stop.stopped_epoch == 4))
PYTHON
