"""Test the wrappers of Gymnasium in configurations and checkpoints."""

import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from jsonargparse import ArgumentParser

from td3_lightning import ReplayData, UsageError
from td3_lightning.cli.app import main
from td3_lightning.cli.array_arguments import register_array_arguments
from td3_lightning.serialization.checkpoint_file import read_checkpoint
from toys import Counter

FLAT = {"class_path": "gymnasium.wrappers.FlattenObservation"}


class Film(Counter):
    """Return images as observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def _obs(self) -> Any:
        return np.full((8, 8, 3), self.steps, np.uint8)


class Parts(Counter):
    """Return dicts as observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict({"a": self.observation_space, "b": self.observation_space})

    def _obs(self) -> Any:
        return {"a": super()._obs(), "b": super()._obs()}


gym.register("Film-v0", Film, disable_env_checker=True)
gym.register("Parts-v0", Parts, disable_env_checker=True)
COUNTER, PENDULUM, FILM = "toys/Counter-v0", "Pendulum-v1", "Film-v0"

# Supported wrappers: name, environment, arguments and outer wrappers.
WORKS: list[tuple[str, str, dict[str, Any], list[dict[str, Any]]]] = [
    ("RescaleObservation", PENDULUM, {"min_obs": -1.0, "max_obs": 2}, []),
    ("RescaleObservation", PENDULUM, {"min_obs": [-1.0, -2, -3.0], "max_obs": [1.0, 2.0, 3.5]}, []),
    ("RescaleAction", PENDULUM, {"min_action": -1.0, "max_action": 1}, []),
    ("RescaleAction", COUNTER, {"min_action": [-1.0], "max_action": [1.0]}, []),
    ("ClipReward", COUNTER, {"min_reward": -1.0, "max_reward": 1}, []),
    ("ClipReward", COUNTER, {"min_reward": -1.0}, []),
    ("DtypeObservation", COUNTER, {"dtype": "float64"}, []),
    ("TransformReward", COUNTER, {"func": "numpy.tanh"}, []),
    ("TransformObservation", COUNTER, {"func": "numpy.tanh", "observation_space": None}, []),
    ("TransformAction", COUNTER, {"func": "numpy.abs", "action_space": None}, []),
    ("ReshapeObservation", FILM, {"shape": [192]}, []),
    ("ResizeObservation", FILM, {"shape": [4, 4]}, [FLAT]),
    ("GrayscaleObservation", FILM, {"keep_dim": True}, [FLAT]),
    ("AddWhiteNoise", FILM, {"probability_of_noise_per_pixel": 0.1}, [FLAT]),
    ("ObstructView", FILM, {"obstructed_pixels_ratio": 0.1, "obstruction_width": 2}, [FLAT]),
    ("FrameStackObservation", COUNTER, {"stack_size": 2, "padding_type": "zero"}, [FLAT]),
    ("MaxAndSkipObservation", COUNTER, {"skip": 2}, []),
    ("DelayObservation", COUNTER, {"delay": 1}, []),
    ("FilterObservation", "Parts-v0", {"filter_keys": ["a"]}, [FLAT]),
    ("FlattenObservation", COUNTER, {}, []),
    ("TimeAwareObservation", PENDULUM, {"normalize_time": True}, []),
    ("StickyAction", COUNTER, {"repeat_action_probability": 0.1, "repeat_action_duration": [1, 2]}, []),
    ("RepeatAction", COUNTER, {"num_repeats": 2}, []),
    ("ClipAction", PENDULUM, {}, [{"class_path": "td3_lightning.SymmetricActionBounds", "init_args": {"bound": 3.0}}]),
    ("TimeLimit", COUNTER, {"max_episode_steps": 3}, []),
    ("OrderEnforcing", COUNTER, {}, []),
    ("PassiveEnvChecker", PENDULUM, {}, []),
    ("RecordEpisodeStatistics", COUNTER, {"buffer_length": 3}, []),
]
UNSUPPORTED = {
    "AddRenderObservation": "requires a render_mode",
    "AtariPreprocessing": "requires discrete actions",
    "Autoreset": "starts episodes that the Collector does not count",
    "DiscretizeAction": "returns discrete actions",
    "DiscretizeObservation": "returns discrete observations",
    "HumanRendering": "opens a window",
    "NormalizeObservation": "keeps statistics that evaluations do not share",
    "NormalizeReward": "keeps statistics that evaluations do not share",
    "RenderCollection": "requires a render_mode",
    "RecordVideo": "requires a render_mode; use the command record",
}


def parsed(env_id: str, wrappers: list[dict[str, Any]]) -> tuple[Any, ReplayData]:
    register_array_arguments()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ReplayData, "data")
    config = parser.parse_object({"data": {"env_id": env_id, "wrappers": wrappers, "capacity": 99}})
    again = parser.parse_string(parser.dump(config))  # like config.yaml
    assert again.data.as_dict() == config.data.as_dict()
    return config, parser.instantiate(again).data


def test_every_wrapper_of_gymnasium_is_listed() -> None:
    found = {name for name, kind in vars(gym.wrappers).items() if inspect.isclass(kind)}
    assert found == {name for name, *_ in WORKS} | UNSUPPORTED.keys() | {"ArrayConversion", "JaxToNumpy"} & found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "env_id", "arguments", "around"), WORKS)
def test_wrapper_works_in_a_configuration(
    name: str, env_id: str, arguments: dict[str, Any], around: list[dict[str, Any]]
) -> None:
    if name == "ResizeObservation":
        pytest.importorskip("cv2")
    wrapper = {"class_path": f"gymnasium.wrappers.{name}", "init_args": arguments}
    _, data = parsed(env_id, [wrapper, *around])
    env: Any = data.eval_env
    while type(env).__name__ != name:
        env = env.env
    data.setup("fit")
    data.begin_episodes()
    low, high = np.array(data.action_low), np.array(data.action_high)
    for _ in range(12):
        data.envs.step(((low + high) / 2).astype(np.float32)[None])


def test_observations_equal_those_of_gymnasium() -> None:
    """Compare with the wrapper created with arrays."""
    low, high = [-1.0, -2.0, -3.0], [1.0, 2.0, 3.5]
    _, data = parsed(PENDULUM, [{"class_path": "gymnasium.wrappers.RescaleObservation", "init_args": {"min_obs": low, "max_obs": high}}])  # noqa: E501  # fmt: skip
    alone = gym.wrappers.RescaleObservation(gym.make(PENDULUM), np.array(low, np.float32), np.array(high, np.float32))
    np.testing.assert_array_equal(data.eval_env.reset(seed=3)[0], alone.reset(seed=3)[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("1e-3", 0.001),
        ("inf", np.inf),
        ("[1, 1e2]", [1, 1e2]),
        ("[[1], [2]]", [[1], [2]]),
    ],
)
def test_numbers_are_parsed_from_text(text: str, value: Any) -> None:
    register_array_arguments()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--numbers", type=np.ndarray)
    for given in (text, [1, text] if isinstance(value, float) else text):
        read = parser.parse_object({"numbers": given}).numbers
        assert read == (value if given is text else [1, value])
        assert type(read) is (type(value) if given is text else list)


@pytest.mark.parametrize("value", ["one", True, {"a": 1}, ["a"], [[1.0], "b"], "[1, x]", "[1", ""], ids=str)
def test_values_that_are_not_numbers_are_refused(value: Any) -> None:
    arguments = {"min_obs": value, "max_obs": 1.0}
    with pytest.raises(Exception, match="min_obs"):
        parsed(PENDULUM, [{"class_path": "gymnasium.wrappers.RescaleObservation", "init_args": arguments}])


def test_list_of_the_wrong_length_is_one_sentence() -> None:
    arguments = {"min_obs": [-1.0], "max_obs": 1.0}
    with pytest.raises(UsageError, match=r"^RescaleObservation does not fit Pendulum-v1 \(Expected new_min.shape to "):
        parsed(PENDULUM, [{"class_path": "gymnasium.wrappers.RescaleObservation", "init_args": arguments}])


SMALL = [
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--model.hidden_dims=[8]"),
    *("--data.steps_per_epoch=4", "--data.batch_size=4", "--data.eval_episodes=1", "--collector.warmup_steps=10"),
]
RESCALE = {"min_obs": [-1.0, -1.0, -1.0], "max_obs": 1}


@pytest.mark.parametrize("how", ["file", "flags"])
def test_arrays_on_command_line_and_in_checkpoint(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrapper = {"class_path": "gymnasium.wrappers.RescaleObservation", "init_args": RESCALE}
    config = {"data": {"env_id": PENDULUM, **({"wrappers": [wrapper]} if how == "file" else {})}}
    Path("here.yaml").write_text(yaml.safe_dump(config))
    flags = ["--data.wrappers+=gymnasium.wrappers.RescaleObservation", "--data.wrappers.min_obs=[-1.0, -1.0, -1.0]"]
    flags = [] if how == "file" else [*flags, "--data.wrappers.max_obs=1"]
    assert main(["fit", "--config", "here.yaml", *SMALL, "--trainer.max_epochs=1", *flags]) == 0
    run = Path("lightning_logs/here/version_0")
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["wrappers"] == [wrapper]
    last = run / "checkpoints" / "last.ckpt"
    assert read_checkpoint(last)["config"]["data"]["wrappers"] == [wrapper]
    assert main(["test", "--ckpt_path", str(last), "--data.test_episodes=1"]) == 0
    words = ["--config", "here.yaml", "--ckpt_path", str(last), "--trainer.max_epochs=2"]
    assert main(["fit", *words, "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]) == 0
    assert read_checkpoint(last)["clocks"]["updates"] == 8
