"""Check how ReplayData uses environments and settings, and what it rejects."""

import copy
import functools
import logging
import pickle
from typing import Any

import gymnasium as gym
import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

import toys  # noqa: F401  # registers them
from one_sentence import refused
from run_comparison import SavesAtEnd
from td3_lightning import TD3, Collector, Linear, ReplayData, UsageError
from td3_lightning.envs.wrappers import ActionRepeat, FlattenAction, SymmetricActionBounds


def new_data(env_id: str = "toys/Counter-v0", **kwargs: Any) -> ReplayData:
    return ReplayData(env_id, **{"steps_per_epoch": 20, "batch_size": 4, "capacity": 500, "eval_episodes": 2, **kwargs})


def fit(data: ReplayData, make_trainer: Any, **kwargs: Any) -> TD3:
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    make_trainer(callbacks=[Collector(10, **kwargs)]).fit(module, datamodule=data)
    return module


def test_shapes_come_from_the_environment() -> None:
    data = new_data("Pendulum-v1")
    assert (data.obs_dim, data.action_low, data.action_high) == (3, [-2.0], [2.0])
    data = new_data(env_kwargs={"low": (-0.5, 0.25), "high": (1.5, 8.0)})
    assert (data.obs_dim, data.action_low, data.action_high) == (3, [-0.5, 0.25], [1.5, 8.0])
    assert all(type(bound) is float for bound in data.action_low + data.action_high)


# Spaces


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("discrete", r"must be a Box, got .*\. Use an environment with continuous actions\.$"),
        (
            "half bounded",
            r"must have finite bounds .*, got Box.*\. Add td3_lightning\.SymmetricActionBounds to data\.wr",
        ),
        ("2-d", r"must have one axis .*, got shape \(2, 2\)\. Add td3_lightning\.FlattenAction to data\.wr"),
        ("int", r"must be floats, got Box\(-2, 3, .*int64\)\. Use an environment with continuous actions"),
    ],
)
def test_unsupported_actions_are_rejected_with_fix(action: str, message: str) -> None:
    with pytest.raises(UsageError, match=rf"^actions of toys/Spaces-v0 {message}"):
        new_data("toys/Spaces-v0", env_kwargs={"action": action})


@pytest.mark.parametrize("action", ["2-d", "0-d"])
def test_flatten_action_restores_action_shape(action: str, make_trainer: Any) -> None:
    flat = functools.partial(gym.make, "toys/Spaces-v0", action=action)
    data = new_data(flat, wrappers=[FlattenAction])
    assert len(data.action_low) == (4 if action == "2-d" else 1)
    assert fit(data, make_trainer).updates == 20  # the toy checks each action


@pytest.mark.parametrize("action", ["unbounded", "float64 max"])
def test_symmetric_bounds_make_unbounded_actions_usable(action: str, make_trainer: Any) -> None:
    bounded = [functools.partial(SymmetricActionBounds, bound=0.25)]
    data = new_data("toys/Spaces-v0", env_kwargs={"action": action}, wrappers=bounded)
    assert data.action_high[0] == 0.25


@pytest.mark.parametrize("observation", ["int", "float64"])
def test_other_dtypes_become_float32(observation: str, make_trainer: Any) -> None:
    data = new_data("toys/Spaces-v0", env_kwargs={"observation": observation})
    module = fit(data, make_trainer)
    assert module.updates == 20
    assert data.replay.sample().obs.dtype == torch.float32


def test_actions_stay_in_float64_box(make_trainer: Any) -> None:
    """The bounds -0.1 and 0.7 are not float32 numbers. The toy asserts that its box contains each action."""
    data = new_data("toys/Spaces-v0", env_kwargs={"action": "float64"}, steps_per_epoch=60)
    fit(data, make_trainer, exploration_noise=3.0)
    actions = data.replay.sample().action
    assert actions.min() >= -0.1
    assert actions.max() <= 0.7


# Making


def test_train_kwargs_apply_to_training_only() -> None:
    data = new_data(env_kwargs={"length": 7, "end": "truncated"}, train_kwargs={"length": 3})
    data.setup("fit")
    kinds = [data.eval_env.unwrapped, *(env.unwrapped for env in data.envs.envs)]
    assert [(env.length, env.end) for env in kinds] == [(7, "truncated"), (3, "truncated")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [({"high": (8.0,)}, r"the same actions in training and evaluation, got Box\(-0.5, 8.0, .* Use data.env_kwargs")],
)
def test_train_kwargs_must_not_change_actions(kwargs: dict[str, Any], said: str) -> None:
    data = new_data(train_kwargs=kwargs)
    with pytest.raises(UsageError, match=said):
        data.setup("fit")
    with pytest.raises(UsageError, match=r'Call setup\("fit"\) first'):
        _ = data.envs


def test_wrappers_apply_innermost_first_to_all_environments() -> None:
    twice, thrice = (functools.partial(ActionRepeat, repeat=repeat) for repeat in (2, 3))
    data = new_data(wrappers=[twice, gym.wrappers.FlattenObservation, thrice], num_envs=2)
    data.setup("fit")
    for env in [data.eval_env, *(env.env for env in data.envs.envs)]:
        assert isinstance(env, ActionRepeat)
        assert isinstance(env.env, gym.wrappers.FlattenObservation)
        assert isinstance(env.env.env, ActionRepeat)
        assert (env.repeat, env.env.env.repeat) == (3, 2)
    assert len({id(env.unwrapped) for env in [data.eval_env, *data.envs.envs]}) == 3


@pytest.mark.parametrize("wrapper", [gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward])
def test_frozen_normalization_is_accepted(wrapper: Any) -> None:
    def frozen(env: Any) -> Any:
        made = wrapper(env)
        made.update_running_mean = False
        return made

    assert new_data(wrappers=[frozen]).obs_dim == 3
    with pytest.raises(
        UsageError, match=r"data\.wrappers must not update running statistics, got Normalize.*\. Use --model.norm"
    ):
        new_data(wrappers=[wrapper])


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        *({"num_envs": 0}, {"steps_per_epoch": 0}, {"updates_per_step": 0.0}, {"updates_per_step": float("nan")}),
        *({"updates_per_step": 1e9}, {"eval_episodes": 40_001}, {"test_episodes": 0}, {"test_seed": 49_999}),
    ],
    ids=str,
)
def test_invalid_setting_error_names_value_and_fix(wrong: dict[str, Any]) -> None:
    ((setting, value),) = wrong.items()
    with refused(setting, str(value)):
        new_data(**wrong)


@pytest.mark.parametrize("rate", [0.04, Linear(1, 0.04, 30)], ids=["number", "falls"])
def test_an_update_follows_at_most_an_epoch_of_steps(rate: Any) -> None:
    with refused("updates_per_step", "0.04", fix="at least 1 / data.steps_per_epoch"):
        new_data(steps_per_epoch=20, updates_per_step=rate)
    assert new_data(steps_per_epoch=49, updates_per_step=1 / 49).replay.batches_per_epoch == 1


@pytest.mark.parametrize(("steps", "per_step", "num_envs", "updates"), [(20, 0.5, 1, 10), (21, 1, 3, 21)])
def test_epoch_has_steps_per_epoch_env_steps(
    steps: int, per_step: float, num_envs: int, updates: int, make_trainer: Any
) -> None:
    data = new_data(steps_per_epoch=steps, updates_per_step=per_step, num_envs=num_envs)
    assert len(data.train_dataloader()) == updates
    module = fit(data, make_trainer)
    warmed_up = 12 if num_envs == 3 else 10
    assert (module.env_steps, module.updates) == (warmed_up + steps, updates)


def test_evaluation_and_test_seeds_differ() -> None:
    data = new_data(eval_episodes=3, test_episodes=2, test_seed=50_007)
    assert [episode.seed for episode in data.val_dataloader()] == [10_000, 10_001, 10_002]
    assert [episode.seed for episode in data.test_dataloader()] == [50_007, 50_008]


def test_only_learner_rewards_are_scaled(make_trainer: Any) -> None:
    data = new_data(reward_scale=0.01, n_step=1)
    module = fit(data, make_trainer)
    batch = data.replay.sample()
    expected = 0.1 * batch.obs[:, 0] + 0.01 * (batch.obs[:, 1] + 1)  # the toy's reward is 10 * episode + steps
    torch.testing.assert_close(batch.reward, expected)
    report = make_trainer().validate(module, datamodule=data, verbose=False)[0]
    assert report["eval/return_mean"] > 10


# A life longer than one fit


def expected_rewards(batch: Any) -> Any:
    return 10 * batch.obs[:, 0] + batch.obs[:, 1] + 1


def test_second_fit_continues(make_trainer: Any) -> None:
    """Fit twice with the same objects. The running episode is truncated, because its environment was closed."""
    data, collector = new_data(env_kwargs={"length": 7}), Collector(10)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    for fits in (1, 2, 3):
        make_trainer(callbacks=[collector]).fit(module, datamodule=data)
        assert (module.env_steps, module.updates) == (10 + 20 * fits, 20 * fits)
        assert data.replay.num_transitions == module.env_steps
    for _ in range(50):
        batch = data.replay.sample()
        torch.testing.assert_close(batch.reward, expected_rewards(batch))
        torch.testing.assert_close(batch.next_obs[:, 1], batch.obs[:, 1] + 1)
        assert torch.equal(batch.discount == 0, batch.next_obs[:, 1] == 7)


def test_copies_of_data_hold_no_trainer(make_trainer: Any) -> None:
    copies: list[ReplayData] = []
    data = new_data()
    copy_now = LambdaCallback(on_train_epoch_end=lambda trainer, module: copies.append(copy.deepcopy(data)))
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    make_trainer(callbacks=[Collector(10), copy_now]).fit(module, datamodule=data)
    for each in (*copies, pickle.loads(pickle.dumps(data))):  # the functions of the callback cannot be pickled
        assert each.trainer is None
        assert each.replay.num_transitions == data.replay.num_transitions > 0
        assert fit(each, make_trainer).updates == 20


def test_checkpoint_after_fit_resumes_exactly(make_trainer: Any, tmp_path: Any) -> None:
    def train(*fits: int) -> dict[str, torch.Tensor]:
        L.seed_everything(1, verbose=False)
        path = None
        for max_epochs in fits:
            data = new_data("Pendulum-v1")
            module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
            trainer = make_trainer(callbacks=[Collector(10)], max_epochs=max_epochs)
            trainer.fit(module, datamodule=data, ckpt_path=path)
            path = tmp_path / "after.ckpt"
            trainer.save_checkpoint(path)
        assert module.env_steps == 70
        return module.state_dict()

    whole = train(3)
    assert all(torch.equal(weight, whole[name]) for name, weight in train(1, 2, 3).items())


def test_episodes_after_exception_are_not_saved() -> None:
    data = new_data()
    for end, saved in ((lambda: data.teardown("fit"), True), (lambda: data.on_exception(RuntimeError()), False)):
        data.setup("fit")
        data.begin_episodes()
        end()
        assert ("envs" in data.state_dict()["ranks"][0]) is saved


@pytest.mark.parametrize("source", ["resumed with an empty replay", "loaded", "imported"])
def test_saved_weights_go_on_without_random_steps(source: str, make_trainer: Any, tmp_path: Any) -> None:
    def collect(module: TD3, collector: Collector, max_epochs: int, **kwargs: Any) -> tuple[ReplayData, float]:
        """Return the data and the share of the stored actions that are the policy's."""
        data = new_data("Pendulum-v1", batch_size=64, empty_replay=bool(kwargs))
        trainer = make_trainer(callbacks=[collector], max_epochs=max_epochs)
        trainer.fit(module, datamodule=data, **kwargs)
        trainer.save_checkpoint(tmp_path / "weights.ckpt")
        batch = data.replay.sample()
        return data, float(np.isclose(module.act(batch.obs.numpy()), batch.action.numpy(), atol=1e-5).mean())

    def new_agent() -> TD3:  # a policy that no update changes
        return TD3(3, [-2.0], [2.0], hidden_dims=(4,), actor_lr=0.0, critic_lr=0.0)

    agent = new_agent()
    _, share = collect(agent, Collector(100, 0.0), 1)
    assert share < 0.5  # the first 100 of 120 actions are random
    if source == "imported":  # the weights of another program, whose clocks are unknown
        again = new_agent()
        again.load_state_dict(agent.state_dict())
        data, share = collect(again, Collector(100, 0.0, random_steps=0), 1)
    elif source == "loaded":
        again = TD3.load_from_checkpoint(tmp_path / "weights.ckpt")
        data, share = collect(again, Collector(100, 0.0), 1)
    else:
        data, share = collect(new_agent(), Collector(100, 0.0), 2, ckpt_path=tmp_path / "weights.ckpt")
    assert data.replay.steps_stored == 120
    assert share == 1


def test_agent_for_other_environment_raises_usage_error(make_trainer: Any) -> None:
    data = new_data()
    low, high = data.action_low, data.action_high
    said = r"^obs_dim, action_low and action_high of the agent must be those of toys/Counter-v0, .*, got .* Use TD3\("
    for sizes in ((data.obs_dim + 1, low, high), (data.obs_dim, [2 * low[0]], high)):
        with pytest.raises(UsageError, match=said):
            make_trainer(callbacks=[Collector(10)]).fit(TD3(*sizes), datamodule=data)
        with pytest.raises(UsageError, match=said):
            make_trainer(callbacks=[Collector(10)]).test(TD3(*sizes), datamodule=data)
    nearly = TD3(data.obs_dim, [float(f"{bound:.8g}") for bound in low], high, hidden_dims=[4])
    make_trainer(callbacks=[Collector(10)]).fit(nearly, datamodule=data)


def test_lost_episode_is_truncated_and_run_continues(
    make_trainer: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Restless cannot be restored. The stored part of its episode stays valid, and a new episode starts."""
    data, again = (new_data("toys/Restless-v0", env_kwargs={"length": 7}, n_step=2) for _ in range(2))
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))

    make_trainer(callbacks=[Collector(10), SavesAtEnd()]).fit(module, datamodule=data)
    assert data.replay.num_transitions == 30 - 1  # the last transition lacks its second reward
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
    collector = Collector(10)
    with caplog.at_level(logging.WARNING, logger="td3_lightning"):
        make_trainer(callbacks=[collector], max_epochs=2).fit(
            module, datamodule=again, ckpt_path=tmp_path / "last.ckpt"
        )
    assert "could not be restored and count as truncated" in caplog.text
    assert (module.env_steps, again.replay.num_transitions) == (50, 50 - 1)
    assert (collector.last_return - sum(range(1, 8))) % 70 == 0  # seven steps in one episode
    for _ in range(50):
        batch = again.replay.sample()
        gone = batch.next_obs[:, 1] - batch.obs[:, 1]
        assert torch.isin(gone, torch.tensor([1.0, 2.0])).all()
        assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0])  # never across episodes
        assert torch.equal(batch.discount == 0, batch.next_obs[:, 1] == 7)


def test_resume_with_another_number_of_threads_warns(make_trainer: Any, tmp_path: Any) -> None:
    data = new_data()
    trainer = make_trainer(callbacks=[Collector(10)])
    trainer.fit(TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,)), datamodule=data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        again = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,))
        with pytest.warns(UserWarning, match=rf"^Results are bit-exact only with the same .*, {threads}, got"):
            make_trainer(callbacks=[Collector(10)], max_epochs=2).fit(
                again, datamodule=new_data(), ckpt_path=tmp_path / "a.ckpt"
            )
    finally:
        torch.set_num_threads(threads)
