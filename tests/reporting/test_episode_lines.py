"""Test the lines that `PrintEpisodes` prints."""

from typing import Any

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, PrintEpisodes, ReplayData


def test_every_training_episode_prints_one_line(make_trainer: Any, capsys: Any) -> None:
    data = ReplayData("toys/Counter-v0", steps_per_epoch=20, batch_size=4, capacity=500, eval_episodes=2)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    make_trainer(callbacks=[Collector(10)], logger=PrintEpisodes()).fit(module, datamodule=data)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("episode: return ")]
    assert module.episodes > 0
    assert len(lines) == module.episodes


def test_line_has_the_numbers_of_the_episode(capsys: Any) -> None:
    logger = PrintEpisodes()
    logger.log_metrics({"train/critic_loss": 1.0}, 3)
    logger.log_metrics({"train/return": -1234.567, "train/length": 200.0}, 12_345)
    assert capsys.readouterr().out == "episode: return -1,234.57, length 200, 12,345 env_steps\n"
