"""Pixels: frame stacks, the replay of single frames, random shifts and convolutions."""

import copy
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from one_sentence import refused
from td3_lightning import TD3, Collector, Encoder, ReplayData, UsageError
from td3_lightning.algorithm.pixel_encoder import Convolutions
from td3_lightning.cli.app import main
from td3_lightning.envs.wrappers import stack_frames
from td3_lightning.replay.pixels import PixelReplay, Pixels

SMALL = Pixels(stack=3, height=4, width=5, shift=0)


class Film(gym.Env[Any, Any]):
    """Environment with 6 x 9 frames that encode episode, step and position; episodes of 3, 5, 4, 3, ... steps."""

    observation_space = Box(0, 255, (6, 9, 3), np.uint8)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.lengths = itertools.cycle((3, 5, 4))
        self.episode, self.steps, self.length = -1, 0, 0

    def _frame(self) -> Any:
        frame = np.zeros((6, 9, 3), np.uint8)
        frame[:, :, 0], frame[:, :, 1] = self.episode % 256, self.steps
        frame[:, :, 2] = 10 * np.arange(6)[:, None] + np.arange(9)
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps, self.length = self.episode + 1, 0, next(self.lengths)
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._frame(), float(self.steps), self.steps == self.length, False, {}


class Linear(Encoder):
    """Encoder for frames that are too small for convolutions."""

    def build(self, obs_dim: int) -> nn.Module:
        class Network(nn.Linear):
            def forward(self, obs: Tensor) -> Tensor:
                return super().forward(obs / 255)

        return Network(obs_dim, 3)


gym.register("toys/Film-v0", entry_point=Film, disable_env_checker=True)


def new_data(pixels: Pixels = SMALL, **kwargs: Any) -> ReplayData:
    settings = {"steps_per_epoch": 20, "batch_size": 32, "capacity": 60, "eval_episodes": 1}
    return ReplayData("toys/Film-v0", pixels=pixels, **(settings | kwargs))


def clocks(stacks: Any) -> Any:
    """Decode (episode, step) of each frame (batch, stack) of stacks (batch, bytes)."""
    frames = np.asarray(stacks).reshape(len(stacks), SMALL.stack, *SMALL.shape)
    assert (frames[..., :2] == frames[..., :1, :1, :2]).all()
    return frames[:, :, 0, 0, 0], frames[:, :, 0, 0, 1]


# Stacks.


def test_stack_repeats_the_first_frame_and_ends_with_newest() -> None:
    env = stack_frames(Film(), SMALL.stack, SMALL.height, SMALL.width)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    seen = [clocks(obs[None])]
    for _ in range(3):
        seen.append(clocks(env.step(np.zeros(1))[0][None]))
    seen.append(clocks(env.reset()[0][None]))
    assert [steps[0].tolist() for _, steps in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 0]]
    assert [episodes[0].tolist() for episodes, _ in seen] == [[0, 0, 0]] * 4 + [[1, 1, 1]]


def test_stack_copies_frames_that_are_overwritten() -> None:
    class OnePlace(Film):
        """Environment that reuses one array for all frames."""

        place = np.zeros((8, 12, 3), np.uint8)

        def _same(self, frame: Any) -> Any:
            self.place = self.place if self.place.shape == frame.shape else np.zeros_like(frame)
            self.place[:] = frame
            return self.place

        def reset(self, **kwargs: Any) -> Any:
            frame, info = super().reset(**kwargs)
            return self._same(frame), info

        def step(self, action: Any) -> Any:
            frame, *rest = super().step(action)
            return self._same(frame), *rest

    env = stack_frames(OnePlace(), SMALL.stack, SMALL.height, SMALL.width)
    env.reset()
    env.step(np.zeros(1))
    assert clocks(env.step(np.zeros(1))[0][None])[1].tolist() == [[0, 1, 2]]


def test_frame_is_cropped_from_the_top_and_the_center() -> None:
    obs, _ = stack_frames(Film(), SMALL.stack, SMALL.height, SMALL.width).reset()
    places = obs.reshape(SMALL.stack, *SMALL.shape)[0, :, :, 2]
    assert places.tolist() == [[10 * row + column for column in range(2, 7)] for row in range(4)]


@pytest.mark.parametrize(
    "wrong", [{"stack": 0}, {"shift": -1}, {"height": 5, "width": 5}, {"height": 8}, {"width": 12}]
)
def test_invalid_pixels_are_one_sentence(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        new_data(Pixels(**{"stack": 2, "height": 4, "width": 4, **wrong}))


class Scaled(Film):
    """Promise bytes, and return numbers up to 1."""

    def _frame(self) -> Any:
        return super()._frame() / 255


@pytest.mark.parametrize("stack", [1, 3])
def test_frames_that_are_not_bytes_are_refused(stack: int) -> None:
    with pytest.raises(TypeError, match="uint8"):
        stack_frames(Scaled(), stack, SMALL.height, SMALL.width).reset()
    with pytest.raises(UsageError, match=r"data\.pixels"):
        ReplayData("Pendulum-v1", pixels=SMALL)


# The replay.


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [40, 1000])
def test_batch_holds_the_stacks_that_the_policy_observed(
    capacity: int, n_step: int, num_envs: int, make_trainer: Any
) -> None:
    """Every frame encodes its origin. The smaller rings are overwritten several times."""
    data = new_data(capacity=capacity, n_step=n_step, num_envs=num_envs)
    module = TD3(data.obs_dim, data.action_low, data.action_high, hidden_dims=(4,), encoder=Linear())
    make_trainer(callbacks=[Collector(170)], max_epochs=1).fit(module, datamodule=data)
    seen = set()
    for _ in range(30):
        batch = data.replay.sample()
        assert batch.obs.dtype == torch.uint8
        (episode, step), (next_episode, next_step) = clocks(batch.obs), clocks(batch.next_obs)
        now, after = step[:, -1].astype(int), next_step[:, -1].astype(int)
        length = np.array([3, 5, 4])[episode[:, -1] % 3]
        assert (after == np.minimum(now + n_step, length)).all()
        back = np.array([2, 1, 0])
        np.testing.assert_array_equal(step, np.maximum(now[:, None] - back, 0))
        np.testing.assert_array_equal(next_step, np.maximum(after[:, None] - back, 0))
        assert (episode == episode[:, -1:]).all()
        assert (next_episode == episode).all()
        sums = [sum(0.99 ** (s - n - 1) * s for s in range(n + 1, a + 1)) for n, a in zip(now, after, strict=True)]
        np.testing.assert_allclose(batch.reward, sums, rtol=1e-5)
        np.testing.assert_allclose(batch.discount, np.where(after == length, 0, 0.99**n_step), rtol=1e-6)
        seen |= set(zip(episode[:, -1].tolist(), now.tolist(), strict=True))
    assert {now for _, now in seen} == {0, 1, 2, 3, 4}
    assert len(seen) > 0.5 * min(capacity, 150) / num_envs


def test_episode_that_goes_on_elsewhere_is_refused() -> None:
    replay, stack = PixelReplay(SMALL, action_dim=1, capacity=60), np.full(180, 255, np.uint8)
    step = {"env": 0, "obs": stack, "action": [0.0], "reward": 1.0, "next_obs": stack}
    for _ in range(2):
        replay.add(**step, terminated=False, truncated=False)
    with refused("obs", "running", "truncated=True"):
        replay.add(**{**step, "obs": stack - 1}, terminated=False, truncated=False)
    assert (replay.sample().obs == 255).all()
    assert (copy.deepcopy(replay).sample().obs == 255).all()


def test_shift_moves_the_whole_stack_and_repeats_its_edge() -> None:
    data = new_data(Pixels(stack=3, height=4, width=5, shift=2), batch_size=500)
    replay: Any = data.replay
    stack = torch.randint(0, 256, (3, 4, 5, 3), dtype=torch.uint8)
    moved = replay._shifted(stack.expand(500, -1, -1, -1, -1)).view(500, 3, 4, 5, 3)
    padded = np.pad(stack.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    expected = {padded[:, y : y + 4, x : x + 5].tobytes() for y in range(5) for x in range(5)}
    assert len(expected) == 25
    assert {one.numpy().tobytes() for one in moved} == expected  # all of them and nothing else


# The network.


def test_convolutions_receive_one_plane_per_frame_and_color() -> None:
    network = Convolutions(features=7).build(4 * 84 * 84 * 3)
    frames = torch.randint(0, 256, (2, 4, 84, 84, 3), dtype=torch.uint8)
    planes = network[0][0](frames.flatten(1))  # type: ignore[index]
    assert planes.shape == (2, 12, 84, 84)
    for frame, colour in itertools.product(range(4), range(3)):
        expected = frames[:, frame, :, :, colour] / 255 - 0.5
        torch.testing.assert_close(planes[:, 3 * frame + colour], expected)
    features = network(frames.flatten(1))
    assert features.shape == (2, 7)
    torch.testing.assert_close(network(frames.flatten(1).float()), features)
    with pytest.raises(UsageError, match="stack"):
        Convolutions(stack=3).build(4 * 84 * 84 * 3)


def test_pixels_without_an_encoder_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--data.env_id", "CarRacing-v3", "--data.pixels", "{stack: 2}"]) == 2
    assert "requires TD3 with model.encoder, got none. Use --model.encoder" in capsys.readouterr().err


def test_pixel_policy_resumes_bit_exactly(make_trainer: Any, tmp_path: Path) -> None:
    pixels = Pixels(stack=2, height=44, width=44, shift=3)
    ends = []
    for resumed in (False, True):
        sizes: dict[str, Any] = {"batch_size": 4, "capacity": 60, "steps_per_epoch": 4, "eval_episodes": 1}
        data = ReplayData("CarRacing-v3", {"max_episode_steps": 4}, pixels=pixels, **sizes)
        module = TD3(
            data.obs_dim,
            data.action_low,
            data.action_high,
            hidden_dims=(8,),
            encoder=Convolutions(5, stack=2, height=44, width=44),
        )
        trainer = make_trainer(callbacks=[Collector(10)], max_epochs=2 if resumed else 1)
        trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "one.ckpt" if resumed else None)
        if not resumed:
            trainer.save_checkpoint(tmp_path / "one.ckpt")
            trainer = make_trainer(callbacks=trainer.callbacks[:1], max_epochs=2)
            before = [weight.clone() for weight in module.critics.encoder.parameters()]
            trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "one.ckpt")
            assert not any(map(torch.equal, before, module.critics.encoder.parameters()))
        ends.append([*module.state_dict().values(), *data.replay.sample()])
    assert all(map(torch.equal, *ends))
