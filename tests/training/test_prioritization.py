"""Priorities in training: which TD errors they follow, when, and in which loop."""

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

import toys  # noqa: F401  # registers them
from one_sentence import refused
from td3_lightning import TD3, Batch, Collector, Replay, ReplayData
from td3_lightning.algorithm.losses import huber
from td3_lightning.replay.priorities import Priorities
from td3_lightning.training import upkeep
from tests.replay.test_pixels import Film, Linear  # noqa: F401  # registers the environment

ALPHA = 0.4
INTERVAL = 7


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the calls of the priorities, in their order, and check each update."""
    seen: list[str] = []
    draw, update, reset = Priorities.draw, Priorities.update, Priorities.reset_max_priority

    def record_update(self: Priorities, td_error: Any) -> None:
        assert self._drawn is not None
        powers = np.maximum(td_error.numpy(), 1) ** np.float32(ALPHA)
        last = dict(zip(self._drawn.tolist(), powers, strict=True))
        update(self, td_error)
        np.testing.assert_array_equal(self._tree.values[list(last)], list(last.values()))
        seen.append("update")

    monkeypatch.setattr(Priorities, "draw", lambda *args: seen.append("draw") or draw(*args))
    monkeypatch.setattr(Priorities, "update", record_update)
    monkeypatch.setattr(Priorities, "reset_max_priority", lambda self: seen.append("reset") or reset(self))
    monkeypatch.setattr(upkeep, "RESET_INTERVAL", INTERVAL)
    return seen


class Follows(Callback):
    """Compute the TD errors of each batch before the update, and compare them with those of the training step."""

    def on_train_batch_start(self, trainer: Any, module: TD3, batch: Batch, batch_idx: int) -> None:
        state = module.noise_generator.get_state()
        with torch.no_grad():
            target = module.td_target(batch, module.draw_target_noise(batch.action))
            q = module.critics(module.critics.encoder(batch.obs), batch.action)
        module.noise_generator.set_state(state)
        self.errors = torch.stack([(one - target).abs() for one in q]).max(dim=0).values

    def on_train_batch_end(self, trainer: Any, module: TD3, outputs: Any, batch: Batch, batch_idx: int) -> None:
        assert outputs["td_error"].shape == (len(batch.reward),)
        torch.testing.assert_close(outputs["td_error"], self.errors, rtol=1e-5, atol=1e-6)


CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "n-step, several environments, wrap-around": {"n_step": 3, "num_envs": 2, "capacity": 60},
    "several updates per step": {"updates_per_step": 2.0},
    "steps between updates": {"updates_per_step": 0.25},
}


def new_data(**kwargs: Any) -> ReplayData:
    settings = {
        "steps_per_epoch": 40,
        "batch_size": 8,
        "eval_episodes": 1,
        "capacity": 5_000,
        "priority_alpha": ALPHA,
        **kwargs,
    }
    return ReplayData("toys/Seeded-v0", **settings)


def new_module(data: ReplayData, **kwargs: Any) -> TD3:
    settings = {"hidden_dims": (6,), "critic_loss": "huber", **kwargs}
    return TD3(data.obs_dim, data.action_low, data.action_high, **settings)


def fit(trainer: L.Trainer, loop: str, data: ReplayData, **kwargs: Any) -> TD3:
    module = new_module(data, **kwargs)
    if loop == "fast":
        pytest.importorskip("td3_lightning.fast.training_loop").FastTrainingLoop.install(trainer)
    trainer.fit(module, datamodule=data)
    return module


@pytest.mark.parametrize("loop", ["fast", "Lightning's"])
@pytest.mark.parametrize("case", CASES)
def test_each_batch_is_drawn_after_the_update_of_the_one_before(
    make_trainer: Any, events: list[str], loop: str, case: str
) -> None:
    data = new_data(**CASES[case])
    trainer = make_trainer(callbacks=[Collector(40), Follows()], max_epochs=2)
    module = fit(trainer, loop, data)
    expected = []
    for update in range(1, module.updates + 1):
        expected += ["draw", "update"] + ["reset"] * (update % INTERVAL == 0)
    assert module.updates == 2 * round(40 * CASES[case].get("updates_per_step", 1.0))
    assert events == expected
    assert max(data.replay.state_dict()["priorities"]["rings"][0]) > 1  # some TD errors are above 1


@pytest.mark.usefixtures("update_rule")
def test_both_loops_train_the_same(make_trainer: Any) -> None:
    runs = []
    for loop in ("fast", "Lightning's"):
        L.seed_everything(2, verbose=False)
        data = new_data()
        module = fit(make_trainer(callbacks=[Collector(20)]), loop, data)
        runs.append((module.state_dict(), data.replay.state_dict()["priorities"]))
    (weights, priorities), (others, same) = runs
    assert all(map(torch.equal, weights.values(), others.values()))
    assert torch.equal(priorities["rings"][0], same["rings"][0])


def test_priorities_require_the_huber_loss(make_trainer: Any) -> None:
    data = new_data()
    with refused("model.critic_loss", "mse", fix="--model.critic_loss huber"):
        fit(make_trainer(callbacks=[Collector(20)]), "fast", data, critic_loss="mse")


# The loss.


def test_huber_loss_is_that_of_the_paper_up_to_a_constant() -> None:
    """The authors' code uses |x| instead of |x| - 0.5 above the threshold; the gradients are the same."""
    error = torch.tensor([[-3.0, -1.0, 0.5, 0.0], [2.0, 0.25, -0.75, 1.5]], requires_grad=True)
    loss, outputs = huber(error)
    loss.backward()
    x = error.detach().numpy()
    expected = np.where(np.abs(x) < 1, 0.5 * x**2, np.abs(x) - 0.5).mean(axis=1).sum()
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert error.grad is not None
    np.testing.assert_allclose(error.grad.numpy(), np.clip(x, -1, 1) / 4, rtol=1e-6)
    np.testing.assert_array_equal(outputs["td_error"].numpy(), np.abs(x).max(axis=0))


def gradient(loss: Tensor, module: TD3) -> Tensor:
    return torch.cat(
        [part.flatten() for part in torch.autograd.grad(loss, list(module.critics.parameters()), retain_graph=True)]
    )


def test_expected_gradient_is_that_of_the_papers_uniform_loss() -> None:
    """Theorem 2 and section 4 of Fujimoto et al. (2020), on a replay of 30 transitions and one critic.

    LAP's expected gradient is that of PAL under uniform sampling: 0.5 x^2 / lambda if |x| <= 1, otherwise
    |x|^(1 + alpha) / ((1 + alpha) lambda), where lambda is the mean of max(|x|, 1)^alpha.
    """
    module = TD3(2, [-1.0], [1.0], hidden_dims=(5,), num_critics=1, critic_loss="huber", policy_noise=0.0).double()
    rng = np.random.default_rng(4)
    replay = Replay(2, 1, capacity=100, batch_size=256, priority_alpha=ALPHA)
    for number in range(31):
        obs, after = np.array([number, 1], np.float32) / 10, np.array([number + 1, 1], np.float32) / 10
        replay.add(0, obs, rng.uniform(-1, 1, 1).astype(np.float32), float(rng.normal() * 3), False, False, after)

    def errors_of(batch: Batch) -> Tensor:
        doubles = Batch(*(part.double() for part in batch))
        target = module.td_target(doubles, torch.zeros_like(doubles.action)).detach()
        return (module.critics(doubles.obs, doubles.action) - target)[0]

    for _ in range(40):  # every transition gets its priority
        replay.priorities.update(errors_of(replay.sample()).detach().abs())
    priorities = replay.state_dict()["priorities"]["rings"][0].double()
    rows = replay.rows[: len(priorities) + 1]
    outcome = rows[:-1, 3], torch.full((len(priorities),), replay.gamma)
    error = errors_of(Batch(rows[:-1, :2], rows[:-1, 2:3], *outcome, rows[1:, :2]))
    assert 5 < (error.abs() > 1).sum() < 25
    np.testing.assert_allclose(priorities, error.detach().abs().clamp(min=1) ** ALPHA, rtol=1e-6)

    each = torch.stack([gradient(huber(one.view(1, 1))[0], module) for one in error.unbind()])
    error = errors_of(Batch(rows[:-1, :2], rows[:-1, 2:3], *outcome, rows[1:, :2]))
    share = priorities / priorities.sum()
    size = error.abs()
    pal = torch.where(size <= 1, 0.5 * error**2, size ** (1 + ALPHA) / (1 + ALPHA)) / priorities.mean()
    uniform = gradient(pal.mean(), module)
    torch.testing.assert_close((share[:, None] * each).sum(dim=0), uniform, rtol=1e-5, atol=1e-8)
    assert not torch.allclose(each.mean(dim=0), uniform, rtol=0.05)  # without priorities, the relation fails

    means = torch.stack([gradient(huber(errors_of(replay.sample())[None])[0], module) for _ in range(400)])
    deviation = means.std(dim=0) / 20
    assert ((means.mean(dim=0) - uniform).abs() < 4.5 * deviation + 1e-9).all()


def test_reset_follows_the_target_updates(make_trainer: Any, events: list[str]) -> None:
    fit(make_trainer(callbacks=[Collector(40)]), "fast", new_data(), target_update_freq=3)
    assert events.count("reset") == 40 // 3
