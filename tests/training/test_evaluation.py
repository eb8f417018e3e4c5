"""Check StopWhenSolved, SaveEvaluations and AveragedWeights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, LambdaCallback, ModelCheckpoint

import toys  # noqa: F401  # registers them
from td3_lightning import TD3, Collector, ReplayData, UsageError
from td3_lightning.envs.episode import Episode
from td3_lightning.interop.policy_file import write_policy
from td3_lightning.reporting.logger import RunLogger
from td3_lightning.reporting.metrics_csv import read_metrics
from td3_lightning.training.evaluation import SaveEvaluations, StopWhenSolved
from td3_lightning.training.weight_averaging import AveragedWeights


def new_data(**kwargs: Any) -> ReplayData:
    """Return data with training episodes of 5 steps and evaluation episodes that depend on the seed."""
    settings = {"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2}
    return ReplayData("toys/Seeded-v0", **(settings | kwargs))


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    return TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), **kwargs)


def seeded_return(data: ReplayData, seed: int) -> float:
    return Episode(data.eval_env, seed).play(new_module(data).act)["return"]  # independent of the actions


# After every episode.


def test_each_training_episode_has_an_evaluation_episode(make_trainer: Any, tmp_path: Path) -> None:
    data, stop = new_data(), StopWhenSolved(threshold=1e9, window=4)
    module, logger = new_module(data), RunLogger(str(tmp_path))
    make_trainer(callbacks=[Collector(40), stop], logger=logger, max_epochs=2).fit(module, datamodule=data)
    # Evaluation episodes for the warm-up precede the first update. The last step's episode has none.
    assert stop.played in (module.episodes, module.episodes - 1)
    expected = [seeded_return(data, 10_000 + number) for number in range(stop.played)]
    assert stop.returns == expected[-4:]
    points = read_metrics(Path(logger.log_dir, "metrics.csv"), ["eval/episode_return", "eval/running_mean"])
    np.testing.assert_array_equal(points["eval/episode_return"][:, 1], expected)
    means = [np.mean(expected[max(0, end - 4) : end]) for end in range(1, len(expected) + 1)]
    np.testing.assert_allclose(points["eval/running_mean"][:, 1], means, rtol=1e-12)
    assert (points["eval/running_mean"][:, 0] >= 40).all()
    assert len(set(points["eval/running_mean"][:, 0])) > 3  # during the run, not only at its end


def test_solved_run_stops_and_stays_stopped_on_resume(make_trainer: Any, tmp_path: Path) -> None:
    returns = [seeded_return(new_data(), 10_000 + number) for number in range(100)]
    means = [np.mean(returns[end - 5 : end]) for end in range(5, 100)]
    threshold = float(np.sort(means[:20])[-2]) + 1e-9  # one of the first twenty is above
    solved_after = next(end for end, mean in enumerate(means, start=5) if mean > threshold)
    updates = []
    for resumed in (False, True):
        data, stop = new_data(), StopWhenSolved(threshold, window=5)
        module = new_module(data)
        trainer = make_trainer(callbacks=[Collector(10), stop], max_epochs=50)
        trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "solved.ckpt" if resumed else None)
        trainer.save_checkpoint(tmp_path / "solved.ckpt")
        assert stop.played == module.episodes == solved_after
        assert stop.returns == returns[solved_after - 5 : solved_after]
        updates.append(module.updates)
    assert updates[0] == updates[1] < 50 * 20


def test_shorter_window_uses_last_episodes() -> None:
    resumed = StopWhenSolved(threshold=1.0, window=2)
    resumed.load_state_dict({"returns": [0.0, 5.0, 5.0], "played": 3})
    assert resumed.solved


# The array.


def test_evaluations_array_starts_with_untrained_policy(make_trainer: Any, tmp_path: Path) -> None:
    logger, ends = RunLogger(str(tmp_path)), []
    for max_epochs, ckpt_path in ((2, None), (3, tmp_path / "two.ckpt")):
        data = new_data(eval_episodes=max_epochs)  # another number of episodes on resume
        callbacks = [Collector(10), SaveEvaluations()]
        settings = {"logger": logger, "max_epochs": max_epochs, "num_sanity_val_steps": -1}
        trainer = make_trainer(callbacks=callbacks, **settings)
        trainer.fit(new_module(data), datamodule=data, ckpt_path=ckpt_path)
        trainer.save_checkpoint(tmp_path / "two.ckpt")
        with np.load(Path(logger.log_dir, "evaluations.npz")) as file:
            ends.append((file["env_steps"].tolist(), file["returns"]))
    one, two, three = (seeded_return(data, 10_000 + number) for number in range(3))
    assert ends[0][0] == [0, 30, 50]
    np.testing.assert_array_equal(ends[0][1], [[one, two]] * 3)
    assert ends[1][0] == [0, 30, 50, 70]
    np.testing.assert_array_equal(ends[1][1], [[one, two, np.nan]] * 3 + [[one, two, three]])


# Averaged weights.


class Weights(Callback):
    """Record the weights after every tenth update and in every evaluation."""

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


def test_average_is_evaluated_and_saved_but_not_trained(make_trainer: Any, tmp_path: Path) -> None:
    noted = {}
    for name, callbacks in (("mean", [AveragedWeights(decay=0.9)]), ("plain", [])):
        torch.manual_seed(0)
        data = new_data(eval_episodes=1)
        module, noted[name] = new_module(data, actor_lr=0.1, critic_lr=0.1), Weights()
        trainer = make_trainer(callbacks=[*callbacks, Collector(10), noted[name]], max_epochs=2)
        trainer.fit(module, datamodule=data)
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        assert torch.equal(flat(module), noted[name].trained[-1]) == (name == "plain")
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


def test_resume_without_averaging_matches_plain_run(make_trainer: Any, tmp_path: Path) -> None:
    found = {}
    for name, first in (("mean", [AveragedWeights(decay=0.9)]), ("plain", [])):
        torch.manual_seed(0)
        path = tmp_path / f"{name}.ckpt"
        trainer = make_trainer(callbacks=[*first, Collector(10)])
        trainer.fit(new_module(data := new_data()), datamodule=data)
        trainer.save_checkpoint(path)
        module, data = new_module(new_data()), new_data()
        make_trainer(callbacks=[Collector(10)], max_epochs=2).fit(module, datamodule=data, ckpt_path=path)
        assert module.updates == 40
        found[name] = flat(module)
    assert torch.equal(found["mean"], found["plain"])


def test_agent_has_the_average_after_fit_and_trains_on_from_it(make_trainer: Any, tmp_path: Path) -> None:
    data, noted, averaged = new_data(), Weights(), AveragedWeights(decay=0.9)
    module = new_module(data, actor_lr=0.1)
    trainer = make_trainer(callbacks=[averaged, Collector(10), noted])
    trainer.fit(module, datamodule=data)
    mean = flat(module)
    assert torch.equal(mean, noted.evaluated[-1])
    assert not torch.equal(mean, noted.trained[-1])
    trainer.validate(module, datamodule=data, verbose=False)
    assert torch.equal(noted.evaluated[-1], mean)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    saved, obs = TD3.load_from_checkpoint(tmp_path / "after.ckpt"), np.ones((1, data.obs_dim), np.float32)
    assert torch.equal(flat(saved), mean)
    write_policy(module, tmp_path / "after.pt2", {})
    exported: Any = torch.export.load(tmp_path / "after.pt2").module()
    np.testing.assert_allclose(exported(torch.from_numpy(obs)).detach(), saved.act(obs), atol=1e-5)
    began = []
    begin = LambdaCallback(on_train_start=lambda trainer, module: began.append(flat(module)))
    again, other = AveragedWeights(decay=0.9), new_module(data, actor_lr=0.1)
    make_trainer(callbacks=[averaged, Collector(10), begin], max_epochs=1).fit(module, datamodule=data)
    resumed = make_trainer(callbacks=[again, Collector(10), begin], max_epochs=2)
    resumed.fit(other, datamodule=new_data(), ckpt_path=tmp_path / "after.ckpt")
    assert all(torch.equal(each, noted.trained[-1]) for each in began)
    assert len(began) == 2


def test_failed_evaluation_restores_trained_weights(make_trainer: Any) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("This one fails.")

    data, noted = new_data(), Weights()
    module = new_module(data, actor_lr=0.1)
    failing = LambdaCallback(on_validation_batch_end=fail)
    with pytest.raises(RuntimeError, match=r"This one fails\."):
        make_trainer(callbacks=[AveragedWeights(decay=0.9), Collector(10), noted, failing]).fit(module, datamodule=data)
    assert torch.equal(flat(module), noted.trained[-1])
    assert not torch.equal(flat(module), noted.evaluated[-1])


def test_incompatible_callbacks_are_rejected(make_trainer: Any) -> None:
    data = new_data()
    for others, said in (
        (
            [Collector(10), AveragedWeights()],
            r"^AveragedWeights must precede the Collector in the callbacks, got the reverse\. Change",
        ),
        (
            [AveragedWeights(), Collector(10), StopWhenSolved(0)],
            "^AveragedWeights and StopWhenSolved must not be combined",
        ),
        ([Collector(10), EMAWeightAveraging()], "must not contain EMAWeightAveraging"),
        ([Collector(10), ModelCheckpoint(every_n_train_steps=30)], "must not have every_n_train_steps or"),
    ):
        with pytest.raises(UsageError, match=said):
            make_trainer(callbacks=others, enable_checkpointing=True).fit(new_module(data), datamodule=data)
