#!/usr/bin/env bash
# ModelCheckpoint with manual optimization: every_n_train_steps skips saves, and train_time_interval never saves.
#
# Versions: Lightning 2.6.6, PyTorch 2.13.0.
#
# An actor-critic steps its critic in each batch and its actor in every second batch. `global_step` counts both. After 100 batches it is
# 150, and it grows by 1 and 2 in turn, so it jumps over each third multiple of 10: of 15 expected saves, 20, 50, 80, 110 and 140 are
# missing. In batches, the saves are 7 and 13 apart.
# With train_time_interval, the same module writes no file in more than 0.5 s at an interval of 0.05 s. The branch of ModelCheckpoint for
# manual optimization looks only at every_n_train_steps. With automatic optimization, the same interval saves.
#
# Output:
#   every_n_train_steps=10, global_step of the saves: 10 30 40 60 70 90 100 120 130 150
#   in batches: 7 20 27 40 47 60 67 80 87 100
#   train_time_interval, manual optimization: 0 saves; automatic optimization: more than 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq torch==2.13.0 lightning==2.6.6
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import time
from datetime import timedelta

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class ActorCritic(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic, self.actor = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.saves = []

    def configure_optimizers(self):
        return [torch.optim.Adam(each.parameters()) for each in (self.critic, self.actor)]

    def training_step(self, batch, batch_idx):
        time.sleep(0.005)
        self.batches = batch_idx + 1
        for network, optimizer in zip((self.critic, self.actor), self.optimizers()):
            if network is self.critic or batch_idx % 2 == 1:
                optimizer.zero_grad()
                self.manual_backward(network(batch).sum())
                optimizer.step()

    def on_save_checkpoint(self, checkpoint):
        self.saves.append((checkpoint["global_step"], self.batches))


class Automatic(ActorCritic):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = True

    def configure_optimizers(self):
        return torch.optim.Adam(self.critic.parameters())

    def training_step(self, batch, batch_idx):
        time.sleep(0.005)
        self.batches = batch_idx + 1
        return self.critic(batch).sum()


def saves(module, folder, **when):
    keep = ModelCheckpoint(folder, save_top_k=-1, save_on_train_epoch_end=False, **when)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    L.Trainer(max_epochs=1, callbacks=[keep], **quiet).fit(module, DataLoader(torch.zeros(100, 1)))
    return module.saves


by_steps = saves(ActorCritic(), "steps", every_n_train_steps=10)
print("every_n_train_steps=10, global_step of the saves:", *[step for step, _ in by_steps])
print("in batches:", *[batches for _, batches in by_steps])
often = timedelta(seconds=0.05)
manual, automatic = saves(ActorCritic(), "manual", train_time_interval=often), saves(Automatic(), "auto", train_time_interval=often)
several = "more than 3" if len(automatic) > 3 else len(automatic)
print(f"train_time_interval, manual optimization: {len(manual)} saves; automatic optimization: {several}")
expected = [10, 30, 40, 60, 70, 90, 100, 120, 130, 150]
raise SystemExit(not ([step for step, _ in by_steps] == expected and not manual and len(automatic) > 3))
PYTHON
