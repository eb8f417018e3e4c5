"""The known attacks by a checkpoint, one by one, through the command line and through Python."""

import io
import os
import pickle
import re
import shutil
import struct
import sys
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import yaml

from td3_lightning import TD3, ReplayData, UsageError
from td3_lightning.cli.app import main
from td3_lightning.serialization.archive import check_archive
from td3_lightning.serialization.checkpoint_file import read_checkpoint

LAST = Path("lightning_logs/here/version_0/checkpoints/last.ckpt")
SMALL = [
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--data.steps_per_epoch=4"),
    *("--data.batch_size=4", "--data.eval_episodes=1", "--data.test_episodes=1", "--data.capacity=100"),
    *("--collector.warmup_steps=10", "--model.hidden_dims=[8]"),
]
COMMANDS = {
    "test": ["test", "--trainer.enable_progress_bar=false"],
    "validate": ["validate", "--trainer.enable_progress_bar=false"],
    "record": ["record", "--episodes=1", "--trainer.enable_progress_bar=false"],
    "export": ["export", "--files=weights/x", "--trainer.enable_progress_bar=false"],
    "fit": ["fit", "--config=here.yaml", *SMALL, "--trainer.max_epochs=3"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a folder with a short run. The run itself was in the folder `here` beside it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        folder.joinpath("here").mkdir()
        patch.chdir(folder / "here")
        Path("here.yaml").write_text("data: {env_id: Pendulum-v1, env_kwargs: {max_episode_steps: 20}}\n")
        assert main(["fit", "--config=here.yaml", *SMALL, "--trainer.max_epochs=2"]) == 0
    return Path(shutil.copytree(folder / "here", folder / "copy"))


@pytest.fixture(autouse=True)
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A working directory with a short run, a module and a file that nothing may load, and a file to be deleted."""
    here = trained.with_name("here")  # the checkpoint has paths in it
    shutil.rmtree(here)
    shutil.copytree(trained, here)
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    Path("evilmod.py").write_text("open('PWNED', 'w').close()\nclass Evil: pass\n")
    Path("evilfile").write_text("class_path: evilmod.Evil\n")
    Path("victim.txt").write_text("precious")
    return torch.load(LAST, weights_only=True)


def refused(capsys: Any, checkpoint: Any, *expected: str, commands: Any = COMMANDS) -> None:
    """Load a checkpoint with several commands; each prints one sentence and leaves no file."""
    torch.save(checkpoint, LAST)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    for command in commands:
        capsys.readouterr()
        assert main([*COMMANDS[command], f"--ckpt_path={LAST}"]) == 2, command
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        for words in expected:
            assert words in said
        assert before == {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}, command
    assert "evilmod" not in sys.modules


TEST = ["test"]  # all commands read settings with the same function, so that one value of a test is for all of them
REPEAT = "td3_lightning.ActionRepeat"
POPEN = {"class_path": "subprocess.Popen", "init_args": {"args": "touch PWNED", "shell": True}}


@pytest.mark.parametrize("value", [(POPEN,), [POPEN], POPEN, OrderedDict(POPEN), [[{"a": (POPEN,)}]]], ids=str)
@pytest.mark.parametrize("name", ["train_kwargs", "env_kwargs"])
def test_free_arguments_cannot_name_a_class(run: Any, capsys: Any, name: str, value: Any) -> None:
    run["config"]["data"][name] = {"g": value}
    commands = COMMANDS if (name, value) == ("env_kwargs", [POPEN]) else TEST
    expected = f'names "subprocess.Popen" in data.{name}', "add the configuration of the run"
    refused(capsys, run, *expected, commands=commands)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (({"class_path": "evilmod.Evil"},), "evilmod.Evil"),
        ('["evilmod\\u002eEvil"]', "["),
        (["evilfile"], "evilfile"),
        ([{"class_path": "td3_lightning.checkpoint.os.system"}], "td3_lightning.checkpoint.os.system"),
        (
            [{"class_path": "td3_lightning.reporting.metrics_csv.MetricsFile", "init_args": {"path": "victim.txt"}}],
            "MetricsFile",
        ),
        ([{"class_path": "gymnasium.wrappers.RecordVideo", "init_args": {"video_folder": "x"}}], "RecordVideo"),
        ([{"class_path": "gymnasium.wrappers.TransformReward", "init_args": {"func": "evilmod.Evil"}}], "evilmod.Evil"),
        ([{"class_path": "Evil"}], "Evil"),
    ],
    ids=str,
)
def test_stored_wrappers_must_be_ours_or_gymnasiums(run: Any, capsys: Any, value: Any, named: str) -> None:
    run["config"]["data"]["wrappers"] = value
    expected = named if isinstance(value, list | tuple) else "must be"
    refused(capsys, run, "wrappers", expected, commands=COMMANDS if named == "evilfile" else TEST)


@pytest.mark.parametrize(
    ("section", "name", "expected"),
    [
        ("data", None, "data must be a mapping, got 'evilfile'"),
        ("model", None, "model must be a mapping, got 'evilfile'"),
        ("collector", None, "collector must be a mapping, got 'evilfile'"),
        ("data", "wrappers", "data.wrappers must be"),
        ("data", "pixels", 'names "evilfile" in data.pixels'),
        ("data", "env_kwargs", "data.env_kwargs must be"),
        ("model", "encoder", 'names "evilfile" in model.encoder'),
        ("model", "actor_lr", "model.actor_lr"),
        ("model", "hidden_dims", "model.hidden_dims must be a list, got 'evilfile'"),
        ("collector", "exploration_noise", "collector.exploration_noise"),
    ],
)
def test_text_instead_of_a_section_opens_no_file(run: Any, capsys: Any, section: str, name: Any, expected: str):
    if name is None:
        run["config"][section] = "evilfile"
    else:
        run["config"][section][name] = "evilfile"
    refused(capsys, run, expected, commands=COMMANDS if (section, name) == ("data", "pixels") else TEST)


@pytest.mark.parametrize("env_id", ["evilmod:Evil-v0", "evilmod.Evil", "../x", "a/b/c"])
def test_environment_module_must_be_named_by_the_user(run: Any, capsys: Any, env_id: str) -> None:
    run["config"]["data"]["env_id"] = env_id
    if ":" in env_id or "/" in env_id:
        refused(capsys, run, f'names "{env_id}" in data.env_id', commands=["test", "record"])
    else:
        refused(capsys, run, env_id, commands=["test"])


@pytest.mark.parametrize("path", ["evilmod.Evil", "subprocess.Popen", ["evilmod.Evil"], {"a": 1}, 3])
def test_loading_from_python_imports_nothing(run: Any, path: Any) -> None:
    run["hyper_parameters"] |= {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "_class_path": "evilmod.Evil",
        "encoder": {"class_path": path, "init_args": {"args": "touch PWNED"}},
    }
    torch.save(run, LAST)
    for kind in (str, Path, lambda path: io.BytesIO(Path(path).read_bytes())):
        with pytest.raises(UsageError, match="encoder"):
            TD3.load_from_checkpoint(kind(LAST))
    assert "evilmod" not in sys.modules
    assert not Path("PWNED").exists()


def test_stored_instantiator_is_not_used(run: Any) -> None:
    run["hyper_parameters"] |= {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "_class_path": "evilmod.Evil",
    }
    torch.save(run, LAST)
    assert isinstance(TD3.load_from_checkpoint(LAST), TD3)
    assert "evilmod" not in sys.modules


def test_network_sizes_are_bounded_by_the_stored_weights(run: Any, capsys: Any) -> None:
    for widths in ([10**9], [10**5, 10**5], [8] * 10_000):
        run["hyper_parameters"]["hidden_dims"] = run["config"]["model"]["hidden_dims"] = widths
        refused(capsys, run, "model.hidden_dims must be of at most")
        with pytest.raises(UsageError, match=r"hyper_parameters\.hidden_dims must be"):
            TD3.load_from_checkpoint(LAST)
    trunk = {"class_path": "td3_lightning.Trunk", "init_args": {"widths": [50]}}
    for changed, expected in (
        ({"obs_dim": 20_000}, "obs_dim must be at most"),
        ({"num_critics": 100}, "hidden_dims must be of at most"),
        ({"encoder": trunk, "obs_dim": 10**6}, "encoder must be of at most"),
        ({"encoder": trunk, "obs_dim": 10**12}, "obs_dim must be at most 30,000,000"),
        ({"encoder": trunk, "obs_dim": 10**6, "normalize_observations": True}, "obs_dim must be of at most"),
    ):
        torch.save(run | {"hyper_parameters": run["hyper_parameters"] | {"hidden_dims": [8], **changed}}, LAST)
        with pytest.raises(UsageError, match=rf"hyper_parameters\.{expected}"):
            TD3.load_from_checkpoint(LAST)


def test_small_critics_may_accompany_a_large_actor(run: Any) -> None:
    agent = TD3(3, [-2.0], [2.0], hidden_dims=[64, 64], critic_hidden_dims=[2], num_critics=20)
    settings = run["hyper_parameters"] | {"hidden_dims": [64, 64], "critic_hidden_dims": [2], "num_critics": 20}
    torch.save(run | {"hyper_parameters": settings, "state_dict": agent.state_dict()}, LAST)
    assert TD3.load_from_checkpoint(LAST).settings.num_critics == 20


def test_checkpoint_sets_no_attribute_besides_the_clocks(run: Any, capsys: Any) -> None:
    for name in ("forward", "actor", "obs_dim"):
        changed = run | {"clocks": run["clocks"] | {name: 1}}
        expected = f"a key of clocks must be one of env_steps, updates, episodes, got '{name}'"
        refused(capsys, changed, expected, commands=["fit", "test"])


def test_stored_stack_of_observations_is_bounded(run: Any, capsys: Any) -> None:
    stack = {"class_path": "gymnasium.wrappers.FrameStackObservation", "init_args": {"stack_size": 10**8}}
    run["config"]["data"]["wrappers"] = [stack]
    refused(capsys, run, "stack_size must be at most 1000, got 100000000", commands=TEST)


@pytest.mark.parametrize("part", ["loops", "callbacks", "optimizer_states", "lr_schedulers", "clocks", "target_noise"])
def test_missing_part_is_one_sentence(run: Any, capsys: Any, part: str) -> None:
    del run[part]
    refused(
        capsys,
        run,
        "is not a checkpoint of" if part == "clocks" else f"{part} must be in the checkpoint",
        commands=["fit"],
    )


def test_weights_only_checkpoint_is_not_resumed(run: Any, capsys: Any) -> None:
    for part in ("callbacks", "optimizer_states", "lr_schedulers"):
        del run[part]
    expected = "a checkpoint to resume from must be saved without save_weights_only, got 'weights only'. Use"
    refused(capsys, run, expected, commands=["fit"])


@pytest.mark.parametrize("name", ["obs_dim", "action_low"])
def test_missing_argument_is_one_sentence(run: Any, name: str) -> None:
    value = run["hyper_parameters"].pop(name)
    torch.save(run, LAST)
    with pytest.raises(UsageError, match=f"hyper_parameters.{name} must be in the checkpoint"):
        TD3.load_from_checkpoint(LAST)
    assert isinstance(TD3.load_from_checkpoint(LAST, **{name: value}), TD3)


def test_data_module_cannot_be_built_from_a_checkpoint(run: Any) -> None:
    torch.save(run | {"datamodule_hyper_parameters": {"env_id": "evilmod:Evil-v0"}}, LAST)
    with pytest.raises(UsageError, match="must be made from your own settings"):
        ReplayData.load_from_checkpoint(LAST)
    assert "evilmod" not in sys.modules


def test_weights_may_be_missing_if_not_strict(run: Any) -> None:
    del run["state_dict"]["actor.scale"]
    torch.save(run, LAST)
    with pytest.raises(UsageError, match=r"state_dict\.actor\.scale must be in the checkpoint and the model, got None"):
        TD3.load_from_checkpoint(LAST)
    assert isinstance(TD3.load_from_checkpoint(LAST, strict=False), TD3)


def test_remote_checkpoint_is_not_downloaded() -> None:
    with pytest.raises(UsageError, match="must be a local file, got http"):
        TD3.load_from_checkpoint("http://localhost:1/x.ckpt")


# Paths.


def best_state(checkpoint: Any) -> Any:
    (key,) = (key for key in checkpoint["callbacks"] if key.startswith("BestCheckpoint"))
    return checkpoint["callbacks"][key]


@pytest.mark.parametrize(
    "victim",
    [
        "../../../../victim.txt",
        "last-1.ckpt",
        "replay",
        "../config.yaml",
        "notes.txt",
        "mine.ckpt",
        "link/steps_1_return_1.ckpt",
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_only_files_that_the_run_writes_are_deleted(run: Any, victim: str, absolute: bool) -> None:
    folder = LAST.parent
    for name in ("notes.txt", "mine.ckpt"):
        (folder / name).write_text("precious")
    Path("elsewhere").mkdir()
    Path("elsewhere/steps_1_return_1.ckpt").write_text("precious")
    (folder / "link").symlink_to(Path("elsewhere").resolve())
    state = best_state(run)
    path = str((folder.resolve() if absolute else folder) / victim)
    state.update(best_k_models={path: torch.tensor(-1e9)}, kth_best_model_path=path, best_model_path=path)
    state.update(last_model_path=path, dirpath=str(folder.resolve() if absolute else folder))
    torch.save(run, LAST)
    kept = [each for each in folder.rglob("*") if each.suffix in (".txt", ".yaml")]
    kept += [Path("victim.txt"), Path("elsewhere/steps_1_return_1.ckpt"), folder / "mine.ckpt", folder / "replay"]
    assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 0
    assert all(each.exists() for each in kept)
    assert (folder / "last-1.ckpt").exists()
    assert any(path.name.startswith("steps_22") for path in folder.iterdir())


def test_files_of_the_run_are_still_replaced(run: Any) -> None:
    state, folder = best_state(run), LAST.parent
    (old,) = state["best_k_models"]
    state["best_k_models"][old] = state["kth_value"] = torch.tensor(-1e9)
    torch.save(run, LAST)
    assert Path(old).exists()
    assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 0
    assert not Path(old).exists()
    assert len(list(folder.glob("steps_*.ckpt"))) == 1


def test_user_model_checkpoint_deletes_only_its_own_files(run: Any) -> None:
    callback = "ModelCheckpoint{'monitor': 'eval/return_mean', 'mode': 'max', 'every_n_train_steps': 0, "
    callback += "'every_n_epochs': 1, 'train_time_interval': None}"
    for dirpath in (str(Path("own").resolve()), "own"):
        victim = os.path.join(dirpath, "..", "victim.txt")
        run["callbacks"][callback] = {
            "dirpath": dirpath,
            "best_model_path": victim,
            "best_k_models": {victim: torch.tensor(-1e9)},
            "kth_best_model_path": victim,
            "kth_value": torch.tensor(-1e9),
            "last_model_path": victim,
            "best_model_score": torch.tensor(-1e9),
            "current_score": torch.tensor(-1e9),
            "monitor": "eval/return_mean",
        }
        torch.save(run, "evil.ckpt")
        Path("evil.yaml").write_text(
            "data: {env_id: Pendulum-v1, env_kwargs: {max_episode_steps: 20}}\ntrainer: {callbacks: [{class_path: "
            "ModelCheckpoint, init_args: {dirpath: own, monitor: eval/return_mean, mode: max}}]}\n"
        )
        fit = ["fit", "--config=evil.yaml", *SMALL, "--trainer.max_epochs=3", "--data.empty_replay=true"]
        assert main([*fit, "--ckpt_path=evil.ckpt"]) == 0
        assert Path("victim.txt").read_text() == "precious"


@pytest.mark.parametrize(
    "name",
    [
        "../../../../ESCAPED_{env_steps:.0f}",
        "/tmp/ESCAPED",
        "a/b",
        "..",
        "last",
        "{env_steps:999999999d}",
        "{x.__class__}",
        "",
    ],
)
def test_stored_file_name_cannot_leave_the_folder(run: Any, capsys: Any, name: str) -> None:
    run["config"]["checkpoint"]["filename"] = name
    refused(
        capsys,
        run,
        f"checkpoint.filename must be a file name without a folder, with metrics in braces, got {name!r}",
        commands=["fit"],
    )


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("clocks.env_steps", -5, "clocks.env_steps must be a non-negative integer, got -5"),
        ("clocks.updates", 1.5, "clocks.updates must be a non-negative integer, got 1.5"),
        ("clocks.updates", True, "clocks.updates must be a non-negative integer, got True"),
        ("clocks.episodes", 10**400, "clocks.episodes must be a non-negative integer, got an integer of 1329 bits"),
        ("config.data.gamma", b"x", "config.data.gamma must be made of numbers, strings, lists and mappings"),
        ("config.data.gamma", {1, 2}, "config.data.gamma must be made of numbers, strings, lists and mappings"),
        ("config.data.gamma", torch.ones(2), "config.data.gamma must be made of numbers, strings, lists and mappings"),
        ("config.data.num_envs", "2", "data.num_envs must be an integer, got '2'"),
        ("config.data.nothing", 1, "a key of data must be one of"),
        ("config.data", 3, "data must be a mapping, got 3"),
        ("config.data.env_kwargs", {"__init__": 1}, "must be a name without leading underscores, got '__init__'"),
        ("config.model.gradients", "x", "model.gradients must be one of 'manual', 'autograd', got 'x'"),
        ("config.data.wrappers", [{"class_path": REPEAT, "a": 1}], "must be class_path or init_args, got 'a'"),
        ("config.seed_everything", -1, "seed_everything must be an integer from 0"),
        ("loops.fit_loop", {}, 'loops.fit_loop must be a mapping with the key "epoch_progress"'),
        ("loops.fit_loop.state_dict", (), "loops.fit_loop.state_dict must be a mapping"),
        ("loops", 3, "loops must be a mapping, got 3"),
        ("loops.fit_loop.epoch_progress.current.processed", "x", "processed must be a non-negative integer, got 'x'"),
        ("format", "x", "format must be a non-negative integer, got 'x'"),
        ("pytorch-lightning_version", "0.1", "pytorch-lightning_version must be a version of Lightning from 2.0 on"),
        (
            "state_dict.actor.scale",
            torch.ones(7),
            "state_dict.actor.scale must be a tensor of shape (1,), got a tensor of",
        ),
        ("state_dict.actor.scale", "x", "state_dict.actor.scale must be a dense tensor on the CPU, got 'x'"),
        (
            "state_dict.actor.scale",
            torch.ones(1).expand(10**9),
            "must be a tensor whose elements are all stored in the file",
        ),
        ("state_dict.extra", torch.ones(7), "state_dict.extra must be in the checkpoint and the model"),
        ("target_noise", [torch.ones(3)], "target_noise.0 must be the state of a torch generator"),
        ("callbacks", [], "callbacks must be a mapping"),
        ("state_dict.actor.scale", torch.ones(1, requires_grad=True), "must be without a gradient"),
        ("state_dict.actor.scale", torch.ones(1).to(torch.float8_e5m2), "must be of a type with all operations"),
        ("stopped_early", [{"a": torch.ones(2)}], "stopped_early.0.a must be made of numbers"),
    ],
    ids=str,
)
def test_malicious_values_are_refused_in_one_sentence(
    run: Any, capsys: Any, path: str, value: Any, expected: str
) -> None:
    put(run, path, value)
    refused(capsys, run, expected, commands=["fit", "test"])


@pytest.mark.parametrize(
    ("name", "most"),
    [("num_envs", 10_000), ("batch_size", 1_000_000), ("eval_episodes", 1_000_000), ("test_episodes", 1_000_000)],
)
def test_stored_counts_are_bounded(run: Any, capsys: Any, name: str, most: int) -> None:
    run["config"]["data"][name] = 10**12
    refused(capsys, run, f"{name} must be in [1, {most}], got {10**12}. Use a smaller value.", commands=["test"])


EPISODE = {"actions": torch.ones(1, 1), "obs": torch.ones(3)}
REPLAY = "ReplayData.ranks.0.replay."
RING = REPLAY + "rings.0."


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (RING + "segments.0.rows", -5, "segments.0.rows must be a non-negative integer, got -5"),
        (RING + "segments.0.rows", "x", "segments.0.rows must be a non-negative integer, got 'x'"),
        (RING + "segments.0.rows", 2**52, "is truncated"),
        (RING + "segments.0.name", "../x.rows", "segments.0.name must be the name of a segment file, got '../x.rows'"),
        (RING + "pending", 10**6, "pending must be at most"),
        (RING + "running", 7, "running must be at most 1, got 7"),
        (RING + "written", -1, "written must be a non-negative integer, got -1"),
        (RING + "written", 2**50, "must hold the rows"),
        (RING + "transitions", 10**6, "transitions must be at most"),
        (RING + "rows", "x", "rows must be a list, got 'x'"),
        (RING + "rows", [3], "rows.0 must be a pair of a number and rows"),
        (RING + "rows", [(0, torch.ones(1, 9))], "numbers wide"),
        ("ReplayData.ranks.0.envs.episodes.0.actions", torch.tensor(1.0), "actions must be a list of actions"),
        (REPLAY + "priorities", 3, "priorities must be a mapping, got 3"),
        (
            REPLAY + "priorities",
            {"largest": 1, "rings": [], "alpha": 0.0},
            "alpha must be a number above 0 and at most 1",
        ),
        (REPLAY + "priorities", {"largest": 1.0}, 'priorities must be a mapping with the key "rings"'),
        (
            REPLAY + "priorities",
            {"largest": float("inf"), "rings": []},
            "largest must be a finite number of at least 1",
        ),
        (
            REPLAY + "priorities",
            {"largest": float("nan"), "rings": []},
            "largest must be a finite number of at least 1",
        ),
        (REPLAY + "priorities", {"largest": 1, "rings": []}, "rings must be a list of 1 tensors of the sizes"),
        (REPLAY + "priorities", {"largest": 1, "rings": [torch.ones(2)]}, "rings must be a list of 1 tensors"),
        (REPLAY + "priorities", {"largest": 1, "rings": [torch.zeros(2)]}, "finite numbers of at least 1"),
        (REPLAY + "priorities", {"largest": 1, "rings": [torch.ones(2) / 0]}, "finite numbers of at least 1"),
        (REPLAY + "priorities", {"largest": 1, "rings": [torch.ones(2).double()]}, "must be a float32 tensor"),
        ("ReplayData.ranks.0.replay.rings", [], "layout.num_envs must be 0"),
        ("ReplayData.ranks.0.replay.layout", {}, 'must be a mapping with the key "obs_dim"'),
        ("ReplayData.ranks.0.replay.generator", torch.ones(3), "generator must be the state of a torch generator"),
        (
            "ReplayData.ranks.0.envs.episodes.0.actions",
            torch.ones(2, 9),
            "actions must be a list of actions of 1 numbers",
        ),
        ("ReplayData", 3, "ReplayData must be a mapping, got 3"),
        ("ReplayData.ranks.0.envs.episodes", [], None),
        ("optimizer_states", [], None),  # as in a published checkpoint
        ("ReplayData.ranks.0.envs.episodes", [EPISODE] * 2, "episodes must be a list of 1, one for each ring"),
        ("optimizer_states.0.state.0.exp_avg", torch.ones(3), "exp_avg' must be a tensor of shape (8, 3)"),
        ("optimizer_states.0.param_groups.0.betas", "x", "betas must be a list, got 'x'"),
        ("optimizer_states.0.param_groups.0.params", [torch.ones(2)] * 4, "params.0 must be a non-negative integer"),
        ("optimizer_states", [{"state": {}, "param_groups": []}], "optimizer_states must be a list of 2"),
        ("optimizer_states.0.param_groups", [], "param_groups must be a list of 1"),
        ("optimizer_states.0.param_groups.0.params", [0], "params must be the numbers of the weights"),
        ("optimizer_states.0.param_groups.0.betas", [0.9], "betas must be 2 values"),
        ("optimizer_states.0.param_groups.0.betas", [0.9, torch.ones(1)], "betas must be a number, got a tensor"),
        ("optimizer_states.0.param_groups.0.amsgrad", True, "amsgrad must be False, as in the new optimizer, got True"),
        ("ReplayData.ranks.0.envs.episodes.0.obs", torch.ones(3).bfloat16(), "real numbers that NumPy supports"),
        ("optimizer_states.0.state", {"x": {}}, "a key of optimizer_states.0.state must be an integer below"),
        ("callbacks.LogRollback.position.events", {"../../x": 3}, "must be the name of a file without a folder"),
        ("callbacks.LogRollback.position", {"rows": 3}, 'must be a mapping with the key "events"'),
        ("callbacks.LogRollback.position.rows", -3, "rows must be a non-negative integer, got -3"),
    ],
    ids=str,
)
def test_malicious_states_are_refused_in_one_sentence(
    run: Any, capsys: Any, path: str, value: Any, expected: Any
) -> None:
    put(run, path, value)
    if expected is None:
        torch.save(run, LAST)
        assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 0
    else:
        refused(capsys, run, expected, commands=["fit"])


def put(checkpoint: Any, path: str, value: Any) -> None:
    """Put a value into nested mappings and lists; weights' names have dots in them."""
    if path.startswith("state_dict."):
        checkpoint["state_dict"][path.partition(".")[2]] = value
        return
    *above, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in above:
        checkpoint = checkpoint[key]
    checkpoint[last] = value


def test_adam_state_of_an_older_torch_is_accepted(run: Any, capsys: Any) -> None:
    for state in run["optimizer_states"]:
        del state["param_groups"][0]["decoupled_weight_decay"]
    torch.save(run, LAST)
    assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 0
    del run["optimizer_states"][1]["param_groups"][0]["betas"]
    refused(capsys, run, 'param_groups must be a mapping with the key "betas"')


def test_deep_nesting_and_cycles_are_refused(run: Any, capsys: Any) -> None:
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    wide: Any = ["x"] * 10
    for _ in range(25):  # 10**26 values, few of them different
        wide = [wide] * 10
    for value, expected in ((deep[0][0], "32 levels deep"), (cycle, "32 levels deep"), (wide, "at most 20,000 values")):
        run["config"]["data"]["env_kwargs"] = {"g": value}
        with io.BytesIO() as file:
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(50_000)
            try:
                torch.save(run, file)
            finally:
                sys.setrecursionlimit(limit)
            LAST.write_bytes(file.getvalue())
        assert main([*COMMANDS["test"], f"--ckpt_path={LAST}"]) == 2
        assert expected in capsys.readouterr().err


def test_shared_values_count_each_time_that_they_are_checked(run: Any) -> None:
    counts: Any = {"a": 1}
    for _ in range(25):  # 2**26 values, few of them different
        counts = {"a": counts, "b": counts}
    run["loops"]["other_loop"] = counts
    torch.save(run, LAST)
    with pytest.raises(UsageError, match="loops must be made of at most 16,777,216 values, got a value of type dict"):
        read_checkpoint(LAST)


# Archives.


def rewritten(change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    """Write the last checkpoint with changed records."""
    with zipfile.ZipFile(LAST) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    change(records)
    path = LAST.with_name("changed.ckpt")
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return path


def test_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    def blow_up(records: dict[str, bytes]) -> None:
        name = next(name for name in records if "/data/" in name)
        records[name] = bytes(200 * 2**20)

    path = rewritten(blow_up, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    with pytest.raises(UsageError, match="has compressed content, which no checkpoint has"):
        read_checkpoint(path)


def test_tensor_larger_than_its_record_is_refused() -> None:
    def enlarge(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.endswith("data.pkl"))
        huge = pickle.BININT + (2**31 - 1).to_bytes(4, "little")
        elements = re.compile(rb"(?:K.|M..|J....)(tq.Q)", re.DOTALL)  # the last of the five that tell a storage
        records[name], changed = elements.subn(lambda found: huge + found.group(1), records[name], count=1)
        assert changed

    with pytest.raises(UsageError, match=r"claims a tensor of [\d,]+ bytes, which it does not hold"):
        read_checkpoint(rewritten(enlarge))


class Reserve:
    def __reduce__(self) -> Any:
        return (bytearray, (2**40,))


def test_pickle_cannot_allocate_memory(run: Any) -> None:
    torch.save(run | {"x": Reserve()}, LAST)
    with pytest.raises(UsageError, match="is refused because it holds objects that could run code"):
        read_checkpoint(LAST)


def test_long_pickle_is_refused_before_it_is_read() -> None:
    def lengthen(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.endswith("data.pkl"))
        records[name] = b"\x80\x02" + pickle.MARK * (17 * 2**20) + b"."

    with pytest.raises(UsageError, match=r"holds 17,825,795 bytes besides its tensors, which is more than 16,777,216"):
        read_checkpoint(rewritten(lengthen))


@pytest.mark.parametrize(
    "value", [b"](" + b"]" * 1_100_000 + b"e", b"](" + b"}" * 1_100_000 + b"e"], ids=["lists", "maps"]
)
def test_pickle_of_many_containers_is_refused(value: bytes) -> None:
    def replace(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.endswith("data.pkl"))
        records[name] = b"\x80\x02}X\x01\x00\x00\x00a" + value + b"s."

    with pytest.raises(UsageError, match="is refused because it holds objects"):
        read_checkpoint(rewritten(replace))


def test_any_error_of_a_damaged_file_is_one_sentence(run: Any) -> None:
    torch.save(run | {"x": complex(1.2345, 2)}, LAST)
    changed = LAST.with_name("changed.ckpt")
    with zipfile.ZipFile(LAST) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):  # a real part that no float can represent
                huge = pickle.encode_long(2**2000)
                before = pickle.BINFLOAT + struct.pack(">d", 1.2345)
                assert content.count(before) == 1
                content = content.replace(before, pickle.LONG1 + bytes([len(huge)]) + huge)
            new.writestr(name, content)
    with pytest.raises(UsageError, match="is not a checkpoint, or is damaged"):
        read_checkpoint(changed)
    LAST.write_bytes(LAST.read_bytes()[:-100])
    with pytest.raises(UsageError, match="is truncated or damaged"):  # the other file is not suggested
        read_checkpoint(LAST)


def test_archive_after_an_old_pickle_is_refused() -> None:
    path = LAST.with_name("changed.ckpt")
    path.write_bytes(pickle.dumps({"clocks": {}}, protocol=2) + LAST.read_bytes())
    with pytest.raises(UsageError, match="claims more content than it holds"):
        read_checkpoint(path)


def integers(count: int) -> bytes:
    """Return the instructions for integers that have the same hash."""
    encoded = [pickle.encode_long((2**61 - 1) * (2**60 + number)) for number in range(count)]
    return b"".join(pickle.LONG1 + bytes([len(each)]) + each for each in encoded)


@pytest.mark.parametrize(
    "value",
    [
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R",  # takes quadratic time
        b"}" + integers(1) + b"Ns",
        b"}K\x01K\x02\x86Ns",
        b"ccollections\nOrderedDict\n)R" + integers(1) + b"Ns",
        b"ccollections\nOrderedDict\n](](" + integers(1) + b"Nee\x85R",
        b"}cbuiltins\ncomplex\nK\x01K\x02\x86RNs",
        b"cbuiltins\nset\n](" + integers(1100) + b"e\x85R",
        b"cbuiltins\nset\n]cbuiltins\ncomplex\nK\x01K\x02\x86Ra\x85R",
    ],
    ids=["encoding", "key", "tuple as key", "ordered key", "ordered pairs", "complex key", "set", "complex numbers"],
)
def test_pickle_with_slow_instructions_is_refused(value: bytes) -> None:
    def replace(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.endswith("data.pkl"))
        records[name] = b"\x80\x02}X\x01\x00\x00\x00a" + value + b"s."

    with pytest.raises(UsageError, match=r"is refused because it holds objects|is truncated or damaged"):
        read_checkpoint(rewritten(replace))


def test_empty_sets_are_refused() -> None:  # 216 bytes in memory for each byte
    def replace(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.endswith("data.pkl"))
        records[name] = b"\x80\x02}X\x01\x00\x00\x00a" + b"\x8fs."

    with pytest.raises(UsageError, match="is truncated or damaged"):
        read_checkpoint(rewritten(replace))


@pytest.mark.parametrize("name", ["archive/constants.pkl", "other/data.pkl"])
def test_archive_of_another_kind_is_refused(name: str, recwarn: pytest.WarningsRecorder) -> None:
    def add(records: dict[str, bytes]) -> None:
        records[name.replace("archive", next(iter(records)).split("/")[0])] = b"x"

    with pytest.raises(UsageError, match="is not a checkpoint, or is damaged"):
        read_checkpoint(rewritten(add))
    assert not recwarn.list


def with_two_directories(content: bytes, which: str) -> bytes:
    """Return an archive whose end refers to two places for the list of its records."""
    tail = content[-98:]  # a ZIP64 record, its locator and the end record
    size, place = struct.unpack("<QQ", tail[40:56])
    records, directory = content[:place], content[place : place + size]
    record, locator, end = tail[:56], tail[56:76], tail[76:]
    if which == "locator":  # zipfile reads the record before the locator, torch the one to which it points
        records, decoy = records + record, place
        record = record[:48] + struct.pack("<Q", place + 56)
        locator = locator[:8] + struct.pack("<Q", decoy) + locator[16:]
        end = end[:16] + struct.pack("<I", place + 56) + end[20:]
    elif which == "end record":
        end = end[:16] + struct.pack("<I", 0) + end[20:]
    else:  # zipfile adds the bytes between the list and the record to all places
        directory += bytes(7)
    return records + directory + record + locator + end


@pytest.mark.parametrize("which", ["locator", "end record", "gap"])
def test_archive_whose_readers_could_differ_is_refused(which: str) -> None:
    path = LAST.with_name("changed.ckpt")
    path.write_bytes(with_two_directories(LAST.read_bytes(), which))
    with pytest.raises(UsageError, match=r"claims more content than it holds|damaged"):
        read_checkpoint(path)
    with path.open("rb") as file, suppress(zipfile.BadZipFile):
        assert check_archive(file) == "claims more content than it holds"


def test_record_with_two_names_is_refused() -> None:
    """zipfile ends a name at a null character, and takes another one from an extra field from Python 3.12 on."""
    path = rewritten(lambda records: records.update({f"{next(iter(records)).split('/')[0]}/extra_record": b"x"}))
    read_checkpoint(path)
    path.write_bytes(path.read_bytes().replace(b"extra_record", b"extra\0record"))
    with pytest.raises(UsageError, match="claims more content than it holds"):
        read_checkpoint(path)


def test_records_that_overlap_or_repeat_are_refused() -> None:
    path = rewritten(lambda records: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(archive.namelist()[0], b"again")
    with pytest.raises(UsageError, match="claims more content than it holds"):
        read_checkpoint(path)


# What must survive.


def test_values_of_a_users_callback_are_loaded(run: Any) -> None:
    state = {"cells": {(1, 2), (3, 4)}, "names": {"a"}, "bytes": b"\xff", "none": set(), "number": 1j, "long": 2**127}
    run["callbacks"]["UsersCallback"] = state
    torch.save(run, LAST)
    assert read_checkpoint(LAST)["callbacks"]["UsersCallback"] == state


VALUES = {
    "text": "word",
    "yes_text": "a yes",
    "long": "1e3 x",
    "inf": float("inf"),
    "minus": -float("inf"),
    "one": 1,
    "one_float": 1.0,
    "small": 1e-5,
    "large": 1e20,
    "truth": True,
    "nothing": None,
    "list": [0.5, float("inf"), "yes", "1e3", "Infinity", "null", "0x1F", "12:30", None, [1, 1.0]],
    "map": {"a": "2024-01-01", "b": "no", "c": "1_000", "d": {"e": "é ü 😀"}, 1: "int", 2.5: "float"},
}


class Keeps(gym.Env[Any, Any]):
    """Environment that stores its keyword arguments."""

    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        kwargs.pop("render_mode", None)
        self.seen.append(kwargs)
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample() * 0, 1.0, False, False, {}


gym.register("Keeps-v0", Keeps, max_episode_steps=5)


@pytest.mark.parametrize("command", ["test", "validate", "fit"])
def test_settings_keep_their_types_in_a_checkpoint(command: str) -> None:
    Path("keeps.yaml").write_text(yaml.safe_dump({"data": {"env_id": "Keeps-v0", "env_kwargs": VALUES}}))
    assert main(["fit", "--config=keeps.yaml", *SMALL, "--trainer.max_epochs=1"]) == 0
    assert typed(Keeps.seen[-1]) == typed(VALUES)
    Keeps.seen.clear()
    words = ["fit", "--config=other.yaml", "--trainer.max_epochs=2"] if command == "fit" else [command]
    Path("other.yaml").write_text("data: {env_id: Keeps-v0}\n")  # the checkpoint's settings win
    assert main([*words, "--ckpt_path=lightning_logs/keeps/version_0/checkpoints/last.ckpt"]) == 0
    assert typed(Keeps.seen[-1]) == typed(VALUES)


def typed(value: Any) -> str:
    """Return a text that distinguishes types."""
    return re.sub(r"\s+", " ", repr(value))


@pytest.mark.parametrize(
    "content",
    [
        "trainer:\n",
        "model:\n",
        "data:\n",
        "collector:\n",
        "checkpoint:\n  # all\n",
        "model:\ntrainer: {log_every_n_steps: 1e1}\n",
    ],
)
def test_empty_section_changes_nothing(content: str, capsys: Any) -> None:
    Path("second.yaml").write_text(content.replace("1e1", "10"))
    first = "model: {hidden_dims: [9]}\ndata: {env_id: Pendulum-v1, capacity: 321}\ncollector: {warmup_steps: 11}\n"
    Path("first.yaml").write_text(first + "checkpoint: {save_top_k: 2}\n")
    assert (
        main(["fit", "--config=first.yaml", "--config=second.yaml", "--trainer.fast_dev_run=1", "--data.batch_size=4"])
        == 0
    )
    said = capsys.readouterr().out
    assert "networks     9" in said
    assert "replay       321 rows" in said
