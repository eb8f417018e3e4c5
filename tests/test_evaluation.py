"""Evaluations after every episode, stopping when solved, and the array of all evaluations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, Linear, ReplayData, UsageError
from td3_lightning.envs import LOGGED, Episode
from td3_lightning.evaluation import AveragedWeights, SaveEvaluations, StopWhenSolved
from td3_lightning.run_logger import RunLogger, read_metrics


def new_data(**kwargs: Any) -> ReplayData:
    """Training episodes of 5 steps, in evaluation of a length and a return that follow the seed."""
    settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2}
    return ReplayData("toys/Seeded-v0", **(settings | kwargs))


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **kwargs)


def seeded_return(data: ReplayData, seed: int) -> float:
    return Episode(data.eval_env, seed).play(new_module(data).act)["return"]  # no action changes it


# After every episode.


def test_every_training_episode_has_its_evaluation_episode(make_trainer: Any, tmp_path: Path) -> None:
    data, stop = new_data(eval_seed=300), StopWhenSolved(threshold=1e9, window=4)
    module, logger = new_module(data), RunLogger(str(tmp_path))
    make_trainer(callbacks=[Collector(40), stop], logger=logger, max_epochs=2).fit(module, datamodule=data)
    # Those of the warm-up are played before the first update; one that the last step ends is not played any more.
    assert stop.played in (module.episodes, module.episodes - 1)
    expected = [seeded_return(data, 300 + number) for number in range(stop.played)]
    assert stop.returns == expected[-4:]
    points = read_metrics(Path(logger.log_dir, "metrics.csv"), ["eval/episode_return", "eval/running_mean"])
    np.testing.assert_array_equal(points["eval/episode_return"][:, 1], expected)
    means = [np.mean(expected[max(0, end - 4) : end]) for end in range(1, len(expected) + 1)]
    np.testing.assert_allclose(points["eval/running_mean"][:, 1], means, rtol=1e-12)
    assert (points["eval/running_mean"][:, 0] >= 40).all()
    assert len(set(points["eval/running_mean"][:, 0])) > 3  # along the run, not at its end


def test_a_log_has_the_names_that_no_info_may_take(make_trainer: Any, tmp_path: Path) -> None:
    data, falling, logger = new_data(), Linear(1e-3, 0, 30), RunLogger(str(tmp_path))
    callbacks = [Collector(10, exploration_noise=falling), StopWhenSolved(threshold=1e9)]
    module = new_module(data, actor_lr=falling, critic_lr=falling)
    make_trainer(callbacks=callbacks, logger=logger, log_every_n_steps=1).fit(module, datamodule=data)
    columns = Path(logger.log_dir, "metrics.csv").read_text().splitlines()[0].split(",")
    of_info = {"steps", "even"}
    assert {name.split("/")[1] for name in columns if "/" in name} == LOGGED | of_info


def test_a_solved_run_stops_and_does_not_go_on_when_resumed(make_trainer: Any, tmp_path: Path) -> None:
    returns = [seeded_return(new_data(eval_seed=300), 300 + number) for number in range(100)]
    means = [np.mean(returns[end - 5 : end]) for end in range(5, 100)]
    threshold = float(np.sort(means[:20])[-2]) + 1e-9  # one of the first twenty is above
    solved_after = next(end for end, mean in enumerate(means, start=5) if mean > threshold)
    updates = []
    for resumed in (False, True):
        data, stop = new_data(eval_seed=300), StopWhenSolved(threshold, window=5)
        module = new_module(data)
        trainer = make_trainer(callbacks=[Collector(10), stop], max_epochs=50)
        trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "solved.ckpt" if resumed else None)
        trainer.save_checkpoint(tmp_path / "solved.ckpt")
        assert stop.played == module.episodes == solved_after
        assert stop.returns == returns[solved_after - 5 : solved_after]
        updates.append(module.updates)
    assert updates[0] == updates[1] < 50 * 20


def test_a_mean_of_few_episodes_solves_nothing() -> None:
    stop = StopWhenSolved(threshold=1.0, window=3)
    for returns, solved in (([5.0, 5.0], False), ([1.0, 1.0, 1.0], False), ([1.0, 1.0, 1.1], True)):
        stop.returns = returns
        assert stop.solved is solved
    with pytest.raises(UsageError, match="window"):
        StopWhenSolved(200.0, window=0)


def test_a_shorter_window_is_of_the_last_episodes() -> None:
    resumed = StopWhenSolved(threshold=1.0, window=2)
    resumed.load_state_dict({"returns": [0.0, 5.0, 5.0], "played": 3})
    assert resumed.solved


# The array.


def test_an_evaluation_of_the_users_own_is_not_the_runs(make_trainer: Any, tmp_path: Path) -> None:
    data, saved = new_data(), SaveEvaluations()
    trainer = make_trainer(callbacks=[Collector(10), saved], logger=RunLogger(str(tmp_path)))
    module = new_module(data)
    trainer.fit(module, datamodule=data)
    trainer.validate(module, datamodule=data, verbose=False)
    assert saved.env_steps == [30]


def test_all_evaluations_are_in_one_array_the_untrained_one_first(make_trainer: Any, tmp_path: Path) -> None:
    logger, ends = RunLogger(str(tmp_path)), []
    for max_epochs, ckpt_path in ((2, None), (3, tmp_path / "two.ckpt")):
        data = new_data(eval_seed=300, eval_episodes=max_epochs)  # another number on resume
        callbacks = [Collector(10), SaveEvaluations()]
        settings = {"logger": logger, "max_epochs": max_epochs, "num_sanity_val_steps": -1}
        trainer = make_trainer(callbacks=callbacks, **settings)
        trainer.fit(new_module(data), datamodule=data, ckpt_path=ckpt_path)
        trainer.save_checkpoint(tmp_path / "two.ckpt")
        with np.load(Path(logger.log_dir, "evaluations.npz")) as file:
            ends.append((file["env_steps"].tolist(), file["returns"]))
    one, two, three = (seeded_return(data, 300 + number) for number in range(3))
    assert ends[0][0] == [0, 30, 50]
    np.testing.assert_array_equal(ends[0][1], [[one, two]] * 3)
    assert ends[1][0] == [0, 30, 50, 70]
    np.testing.assert_array_equal(ends[1][1], [[one, two, np.nan]] * 3 + [[one, two, three]])


def test_an_array_that_cannot_be_written_warns_once_and_stops_nothing(make_trainer: Any, tmp_path: Path) -> None:
    data, logger = new_data(), RunLogger(str(tmp_path))
    Path(logger.log_dir, "evaluations.npz", "in the way").mkdir(parents=True)
    module = new_module(data)
    with pytest.warns(UserWarning, match="evaluations.npz, which could not be written") as warned:
        make_trainer(callbacks=[Collector(10), SaveEvaluations()], logger=logger, max_epochs=3).fit(module, data)
    assert module.updates == 60
    assert len([one for one in warned if "evaluations.npz" in str(one.message)]) == 1


def test_without_a_logger_there_is_no_array(make_trainer: Any, tmp_path: Path) -> None:
    data = new_data()
    make_trainer(callbacks=[Collector(10), SaveEvaluations()]).fit(new_module(data), datamodule=data)
    assert not list(tmp_path.rglob("*.npz"))


# Averaged weights.


class Weights(Callback):
    """Notes the weights after every tenth update, and in every evaluation."""

    def __init__(self) -> None:
        self.trained: list[torch.Tensor] = []
        self.evaluated: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if pl_module.updates % 10 == 0:
            self.trained.append(flat(pl_module))

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.evaluated.append(flat(pl_module))


def flat(module: Any) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def test_the_mean_of_the_weights_is_evaluated_and_saved_and_trains_nothing(make_trainer: Any, tmp_path: Path) -> None:
    noted = {}
    for name, callbacks in (("mean", [AveragedWeights(decay=0.9)]), ("plain", [])):
        torch.manual_seed(0)
        data = new_data(eval_episodes=1)
        module, noted[name] = new_module(data, actor_lr=0.1, critic_lr=0.1), Weights()
        trainer = make_trainer(callbacks=[Collector(10), *callbacks, noted[name]], max_epochs=2)
        trainer.fit(module, datamodule=data)
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        assert torch.equal(flat(module), noted[name].trained[-1])
    assert all(map(torch.equal, noted["mean"].trained, noted["plain"].trained))
    first, *others = noted["mean"].trained
    means = [first]
    for weights in others:  # four of them, two for each evaluation
        means.append(0.9**10 * means[-1] + (1 - 0.9**10) * weights)
    assert len(means) == 4
    torch.testing.assert_close(noted["mean"].evaluated, means[1::2])
    policy = TD3.load_from_checkpoint(tmp_path / "mean.ckpt")
    torch.testing.assert_close(flat(policy), means[-1])
    assert not torch.allclose(flat(policy), noted["plain"].trained[-1])


def test_a_decay_out_of_its_range_is_refused() -> None:
    with pytest.raises(UsageError, match=r"decay is in \[0, 1\), but 1 came"):
        AveragedWeights(decay=1)
