"""The known attacks by a checkpoint, one by one, through the command line and through Python."""

import io
import pickle
import re
import shutil
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from td3_lightning import TD3, ReplayData, UsageError
from td3_lightning.cli.app import main
from td3_lightning.serialization.checkpoint_file import read_checkpoint

LAST = Path("lightning_logs/here/version_0/checkpoints/last.ckpt")
SMALL = [
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--data.steps_per_epoch=4"),
    *("--data.batch_size=4", "--data.eval_episodes=1", "--data.test_episodes=1", "--data.capacity=100"),
    *("--collector.warmup_steps=10", "--model.hidden_dims=[8]"),
]
COMMANDS = {
    "test": ["test", "--trainer.enable_progress_bar=false"],
    "record": ["record", "--episodes=1", "--trainer.enable_progress_bar=false"],
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
    Path("victim").write_text("precious")
    return torch.load(LAST, weights_only=True)


def refused(checkpoint: Any, commands: Any = COMMANDS) -> None:
    """Load a checkpoint with several commands; each fails, imports nothing and changes no file."""
    torch.save(checkpoint, LAST)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    for command in commands:
        try:
            status = main([*COMMANDS[command], f"--ckpt_path={LAST}"])
        except Exception:  # the error of a library
            status = 1
        assert status in (1, 2), command
        assert before == {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}, command
    assert "evilmod" not in sys.modules


def put(checkpoint: Any, path: str, value: Any) -> None:
    """Put a value into nested mappings and lists."""
    *above, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in above:
        checkpoint = checkpoint[key]
    checkpoint[last] = value


EVIL = {"class_path": "evilmod.Evil"}
POPEN = {"class_path": "subprocess.Popen", "init_args": {"args": "touch PWNED", "shell": True}}
FILE = {"class_path": "td3_lightning.reporting.metrics_csv.MetricsFile", "init_args": {"path": "victim"}}
RECORD = {"class_path": "gymnasium.wrappers.RecordVideo", "init_args": {"video_folder": "x"}}
FUNCTION = {"class_path": "gymnasium.wrappers.TransformReward", "init_args": {"func": "evilmod.Evil"}}
STACK = {"class_path": "gymnasium.wrappers.FrameStackObservation", "init_args": {"stack_size": 10**8}}
NAMES = [
    *(("data.train_kwargs", {"g": [(POPEN,)]}), ("data.env_kwargs", {"g": EVIL})),
    *(("data.wrappers", value) for value in ([EVIL], '["evilmod\\u002eEvil"]', [FILE], [RECORD], [FUNCTION], [STACK])),
    *((path, "evilfile") for path in ("data", "model", "data.wrappers", "model.encoder", "model.actor_lr")),
    *((path, EVIL) for path in ("model.encoder", "collector.exploration_noise")),
    *(("data.env_id", name) for name in ("evilmod:Evil-v0", "../x")),
]


@pytest.mark.parametrize(("path", "value"), NAMES, ids=str)
def test_stored_settings_import_nothing_and_open_no_file(run: Any, path: str, value: Any) -> None:
    put(run, f"config.{path}", value)
    refused(run, COMMANDS if value in ([EVIL], "evilmod:Evil-v0") else ["test"])


@pytest.mark.parametrize("path", ["evilmod.Evil", "subprocess.Popen", ["evilmod.Evil"]])
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
    del run["hyper_parameters"]["encoder"]
    torch.save(run | {"datamodule_hyper_parameters": {"env_id": "evilmod:Evil-v0"}}, LAST)
    assert isinstance(TD3.load_from_checkpoint(LAST), TD3)
    with pytest.raises(UsageError, match="must be made from your own settings"):
        ReplayData.load_from_checkpoint(LAST)
    assert "evilmod" not in sys.modules
    assert not Path("PWNED").exists()


def test_network_sizes_are_bounded_by_the_stored_weights(run: Any) -> None:
    trunk = {"class_path": "td3_lightning.Trunk", "init_args": {"widths": [50]}}
    for changed in (
        *({"hidden_dims": widths} for widths in ([10**9], [10**5, 10**5], [8] * 10_000)),
        *({"obs_dim": 10**9}, {"num_critics": 10**5}, {"encoder": trunk, "obs_dim": 10**12}),
    ):
        torch.save(run | {"hyper_parameters": run["hyper_parameters"] | changed}, LAST)
        with pytest.raises(UsageError, match="The checkpoint is refused"):
            TD3.load_from_checkpoint(LAST)
    run["config"]["model"]["hidden_dims"] = [10**5, 10**5]
    refused(run, ["test", "fit"])


# Paths.


def best_state(checkpoint: Any) -> Any:
    (key,) = (key for key in checkpoint["callbacks"] if key.startswith("BestCheckpoint"))
    return checkpoint["callbacks"][key]


@pytest.mark.parametrize("victim", ["../../../../victim", "replay", "../config.yaml", "link/steps_1_return_1.ckpt"])
def test_no_file_out_of_the_folder_is_deleted(run: Any, victim: str) -> None:
    folder = LAST.parent
    Path("elsewhere").mkdir()
    Path("elsewhere/steps_1_return_1.ckpt").write_text("precious")
    (folder / "link").symlink_to(Path("elsewhere").resolve())
    state, path = best_state(run), str(folder / victim)
    state.update(best_k_models={path: torch.tensor(-1e9)}, kth_best_model_path=path, best_model_path=path)
    state.update(last_model_path=path, dirpath=str(folder))
    torch.save(run, LAST)
    kept = [each for each in folder.parent.rglob("*") if each.suffix in (".txt", ".yaml", ".rows")]
    assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 0
    assert all(each.exists() for each in [*kept, Path("victim"), Path("elsewhere/steps_1_return_1.ckpt")])
    assert any(path.name.startswith("steps_22") for path in folder.iterdir())


# States.

SEGMENTS = "ReplayData.ranks.0.replay.rings.0.segments"


def test_segment_files_are_named_once_and_in_their_folder(run: Any) -> None:
    (segment,) = run["ReplayData"]["ranks"][0]["replay"]["rings"][0]["segments"]
    (LAST.parent / "x.rows").write_bytes((LAST.parent / "replay" / segment["name"]).read_bytes())
    for changed in ([segment] * 300_000, [{**segment, "name": "../x.rows"}], [{**segment, "rows": 2**52}]):
        put(run, SEGMENTS, changed)
        began = time.process_time()
        refused(run, ["fit"])
        assert time.process_time() - began < 30


def test_moments_of_another_shape_are_refused(run: Any) -> None:
    """Fused Adam of PyTorch 2.13 writes beyond a moment that is smaller than its weight."""
    run["optimizer_states"][0]["state"][0]["exp_avg_sq"] = torch.ones(3)
    torch.save(run, LAST)
    assert main([*COMMANDS["fit"], f"--ckpt_path={LAST}"]) == 2


def test_repeated_values_and_cycles_are_refused(run: Any) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    wide: Any = ["x"] * 10
    for _ in range(25):  # 10**26 values, few of them different
        wide = [wide] * 10
    for value in (cycle, wide, torch.ones(1).expand(10**9)):
        torch.save(run | {"callbacks": {"own": value}}, LAST)
        with pytest.raises(UsageError, match=r"claims more than|claims a tensor"):
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


def pickled_name(records: dict[str, bytes]) -> str:
    (name,) = (name for name in records if name.endswith("data.pkl"))
    return name


def test_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    def blow_up(records: dict[str, bytes]) -> None:
        records[next(name for name in records if "/data/" in name)] = bytes(200 * 2**20)

    path = rewritten(blow_up, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**20
    with pytest.raises(UsageError, match="claims more content than it holds"):
        read_checkpoint(path)


def test_tensor_larger_than_its_record_is_refused() -> None:
    """torch would read beyond the record."""

    def enlarge(records: dict[str, bytes]) -> None:
        huge = pickle.BININT + (2**31 - 1).to_bytes(4, "little")
        elements = re.compile(rb"(?:K.|M..|J....)(tq.Q)", re.DOTALL)  # the last of the five that tell a storage
        name = pickled_name(records)
        records[name], changed = elements.subn(lambda found: huge + found.group(1), records[name], count=1)
        assert changed

    with pytest.raises(UsageError, match=r"claims a tensor of [\d,]+ bytes, which it does not hold|two sizes"):
        read_checkpoint(rewritten(enlarge))


def integers(count: int) -> bytes:
    """Return the instructions for integers that have the same hash."""
    encoded = [pickle.encode_long((2**61 - 1) * (2**60 + number)) for number in range(count)]
    return b"".join(pickle.LONG1 + bytes([len(each)]) + each for each in encoded)


DEEP = b")q\x00" + b"".join(bytes([*b"h", level, *b"h", level, *b"\x86q", level + 1]) for level in range(60))
ORDERED = b"ccollections\nOrderedDict\n)R"
SLOW = {
    "code": b"cos\nsystem\nX\x06\x00\x00\x00touch x\x85R",
    "memory": b"cbuiltins\nbytearray\n" + pickle.LONG1 + b"\x06" + (2**40).to_bytes(6, "little") + b"\x85R",
    "encoding": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R",  # takes quadratic time
    "long key": b"}" + integers(1) + b"Ns",
    "long ordered key": ORDERED + integers(1) + b"Ns",
    "ordered pairs": b"ccollections\nOrderedDict\n](](" + integers(1) + b"Nee\x85R",
    "tuple as key": b"}K\x01K\x02\x86Ns",
    "complex key": b"}cbuiltins\ncomplex\nK\x01K\x02\x86RNs",
    "set": b"cbuiltins\nset\n](" + integers(1100) + b"e\x85R",
    # The hash of a tuple visits shared elements each time: these 400 bytes take 2**60 steps.
    "hash as key": DEEP + b"}h\x3cNs",
    "hash in set": DEEP + b"cbuiltins\nset\n]h\x3ca\x85R",
    "hash in state": DEEP + ORDERED + b"](h\x3cN\x86eb",
    "other instruction": b"\x8f",
}


@pytest.mark.parametrize("value", SLOW.values(), ids=SLOW)
def test_pickle_that_takes_code_time_or_memory_is_refused(value: bytes) -> None:
    def replace(records: dict[str, bytes]) -> None:
        records[pickled_name(records)] = b"\x80\x02}X\x01\x00\x00\x00a" + value + b"s."

    with pytest.raises(UsageError, match=r"changed\.ckpt (holds|is)"):
        read_checkpoint(rewritten(replace))


def test_torch_reads_only_the_checked_records(run: Any) -> None:
    """Readers of zip files differ in which record of several they take, so torch reads a copy of the checked ones."""
    path = rewritten(lambda records: records.update({"archive/constants.pkl": b"x", "archive/extra": b"x"}))
    assert read_checkpoint(path)["clocks"] == run["clocks"]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(next(name for name in archive.namelist() if name.endswith("data.pkl")).upper(), b"again")
        archive.writestr("x/data.pkl", b"again")
    with pytest.raises(UsageError, match="holds a record twice"):
        read_checkpoint(path)
