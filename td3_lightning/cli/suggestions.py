"""Suggestions for invalid settings, classes, numbers and lists."""

import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from td3_lightning.errors import UsageError

# Setting names of other TD3 implementations (Stable-Baselines3, CleanRL, Spinning Up, Tianshou, sfujim/TD3) and the
# corresponding setting here. Names are compared in lower case without punctuation.
FOREIGN = {
    "learning rate, lr, policy lr, q lr, lr actor, lr critic, actor learning rate, critic learning rate, pi lr": (
        "--model.actor_lr and --model.critic_lr"
    ),
    "buffer size, replay size, memory size, buffer capacity, replay buffer size, replay capacity": "--data.capacity",
    "learning starts, start timesteps, start steps, initial steps, warmup, warmup steps, update after": (
        "--collector.warmup_steps"
    ),
    "total timesteps, max timesteps, timesteps, num timesteps, total steps, num steps, env steps, steps, n timesteps": (
        "--trainer.max_epochs (an epoch has --data.steps_per_epoch environment steps)"
    ),
    "net arch, hidden sizes, hidden size, hidden layers, hidden dim, layers, units, policy kwargs, ac kwargs": (
        "--model.hidden_dims, for example --model.hidden_dims [256,256]"
    ),
    "policy delay, policy frequency, policy update freq, actor update freq, delay": "--model.policy_freq",
    "train freq, update every, update freq, train frequency": "--collector.collect and --data.updates_per_step",
    "gradient steps, utd, utd ratio, replay ratio, updates per step, update per step": "--data.updates_per_step",
    "device, cuda, gpu, no cuda": "--trainer.accelerator",
    "gpus, num gpus, nproc": "--trainer.devices",
    "seed, random seed": "--seed_everything",
    "env, env name, environment, gym id, env id, task": "--data.env_id",
    "discount, discount factor": "--data.gamma",
    "expl noise, action noise, act noise, exploration noise, explore noise, action sigma": (
        "--collector.exploration_noise"
    ),
    "target policy noise, target noise, smoothing noise": "--model.policy_noise",
    "target noise clip, noise clamp": "--model.noise_clip",
    "polyak, soft update, target update tau": "--model.tau (the weight of the new network, 1 - polyak)",
    "eval freq, eval frequency, eval interval, evaluation interval": "--data.steps_per_epoch",
    "n eval episodes, num eval episodes, num test episodes": "--data.eval_episodes",
    "n envs, num env, vec envs, training num": "--data.num_envs",
    "n critics, num q, num qs, ensemble size": "--model.num_critics",
    "n steps, multi step, nstep": "--data.n_step",
    "epochs, num epochs, iterations": "--trainer.max_epochs",
    "minibatch size, mini batch size": "--data.batch_size",
    "max grad norm, grad clip, clip grad norm, grad norm": "--model.max_grad_norm",
    "load, load model, load path, checkpoint path, resume, resume from, model path": "--ckpt_path",
    "save dir, log dir, logdir, output dir, out dir, output, tensorboard log, logger kwargs": (
        "--trainer.default_root_dir"
    ),
    "exp name, run name, experiment name, tb log name": "--name",
    "max episode steps, max ep len, time limit": "--data.env_kwargs.max_episode_steps",
    "env args, env kwargs": "--data.env_kwargs",
    "capture video, save video, render": "the command record",
    "eval, evaluate": "the command test",
    "track, use wandb, wandb": "--trainer.logger WandbLogger",
}

OURS = {name.replace(" ", ""): ours for names, ours in FOREIGN.items() for name in names.split(", ")}

# Commands of other programs and the corresponding command here.
COMMANDS = {
    **dict.fromkeys(("train", "learn", "run"), "fit"),
    **dict.fromkeys(("eval", "evaluate", "enjoy"), "test"),
    **dict.fromkeys(("val", "validation"), "validate"),
    **dict.fromkeys(("tune", "optimize", "hpo", "search", "seeds"), "sweep"),
    **dict.fromkeys(("video", "play", "render", "watch"), "record"),
    **dict.fromkeys(("help", "h", "-help"), "--help"),
    **dict.fromkeys(("version", "-V", "-version"), "--version"),
}

# Classes that a setting accepts, by the last part of its name.
SCHEDULES: dict[str, tuple[str, ...]] = {"td3_lightning": ("Linear", "Constant")}
LINE = "{class_path: Linear, init_args: {start: A, end: B, steps: N}}"  # each setting has its own bounds
ENCODERS: dict[str, tuple[str, ...]] = {"td3_lightning": ("Trunk", "Convolutions")}

CLASSES: dict[str, dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("actor_lr", "critic_lr", "encoder_lr", "n_step"), SCHEDULES),
    **dict.fromkeys(("exploration_noise", "noise_clip", "policy_noise", "tau", "policy_freq"), SCHEDULES),
    **dict.fromkeys(("target_update_freq", "max_grad_norm", "bc_weight", "gamma", "updates_per_step"), SCHEDULES),
    **dict.fromkeys(("encoder", "critic_encoder"), ENCODERS),
    "dataset": {"td3_lightning": ("Dataset",)},
    "pixels": {"td3_lightning": ("Pixels",)},
    "wrappers": {
        "td3_lightning": (
            *("ActionNoise", "ActionRepeat", "FlattenAction", "ObservationNoise", "Pedals", "SymmetricActionBounds"),
        ),
        "gymnasium.wrappers": (),
    },
    "callbacks": {
        "td3_lightning": (
            *("AveragedWeights", "Curve", "EvalVideo", "PolicyCheckpoint", "SaveEvaluations", "StopWhenSolved"),
        ),
        "lightning.pytorch.callbacks": (),
    },
    "logger": {
        "td3_lightning": ("PrintEpisodes",),
        "td3_lightning.reporting.logger": ("RunLogger",),
        "lightning.pytorch.loggers": (),
    },
    "profiler": {"lightning.pytorch.profilers": ()},
    "strategy": {"lightning.pytorch.strategies": ()},
    "plugins": {"lightning.pytorch.plugins": ()},
}


def with_schedule() -> str:
    """List the settings that accept a schedule."""
    *names, last = [name for name, classes in CLASSES.items() if classes is SCHEDULES]
    return f"{', '.join(names)} and {last}"


def takes_schedule(key: str) -> bool:
    """Return whether a setting accepts a schedule."""
    return CLASSES.get(key.split(".")[-1]) is SCHEDULES


def is_schedule(path: str) -> bool:
    """Return whether a value names a schedule of this package."""
    return path.split(".")[-1] in SCHEDULES["td3_lightning"]


def setting(name: str, known: Iterable[str]) -> str:
    """Suggest the setting for a misspelled name or for another library's name."""
    known = list(known)
    name = name.replace("-", "_")
    foreign = OURS.get(re.sub("[^a-z]", "", name.lower().split(".")[-1]))
    if foreign is not None and not any(one.split(".")[-1] == name.split(".")[-1] for one in known):
        return f"use {foreign}"
    close = [one for one in known if one.split(".")[-1] == name.split(".")[-1]] or get_close_matches(name, known, n=1)
    if not close:  # the section may be missing or wrong
        ends = {one.split(".")[-1]: one for one in known}
        close = [ends[end] for end in get_close_matches(name.split(".")[-1], ends, n=1, cutoff=0.75)]
    return f"did you mean {close[0]}?" if close else f"use {foreign}" if foreign else _listing(known)


def _listing(known: Sequence[str]) -> str:
    return f"use one of {', '.join(known)}" if 0 < len(known) < 20 else "see --help for all settings"


def command(name: str, known: Iterable[str]) -> str:
    """Return a hint to the closest command."""
    known = list(known)
    close = COMMANDS.get(name) or next(iter(get_close_matches(name.lower(), known, n=1)), None)
    if name.startswith("--") and not close:
        return f"use one of {', '.join(known)} before the flags."
    return f"did you mean {close}?" if close else f"use one of {', '.join(known)}, or --help."


def class_path(name: str, key: str) -> str:
    """Return a hint to the closest class for a setting, "" if none is close."""
    paths = known_classes(key) or [path for each in CLASSES for path in known_classes(each)]
    ends = {path.split(".")[-1].lower(): path for path in paths}
    end = name.split("(")[0].split(".")[-1].lower()
    close = get_close_matches(end, ends, n=1, cutoff=0.7) or [each for each in ends if len(end) > 3 and end in each]
    return f"did you mean {ends[close[0]]}?" if close else ""


def known_classes(key: str) -> list[str]:
    """Return the import paths of the classes of this package and its dependencies that a setting accepts."""
    modules = CLASSES.get(key.split(".")[-1], {})
    return [f"{module}.{name}" for module, names in modules.items() for name in names or _public(module)]


def _public(module: str) -> list[str]:
    """Return the names of a module's public classes. Accessing the classes could import missing packages."""
    found = sys.modules.get(module) or importlib.import_module(module)  # only modules of Lightning and Gymnasium
    return [name for name in getattr(found, "__all__", []) if name[:1].isupper()]


def integer(value: str) -> str | None:
    """Write a number such as 1e6, 10,000 or 1M as an integer. Return None if it is not an integer."""
    match = re.fullmatch(r"([-+]?[\d_,]*\.?\d+(?:e[-+]?\d{1,2})?)\s*([kKmM]?)", value.strip(), re.IGNORECASE)
    if match is None or not re.fullmatch(r"[^,]*|[-+]?\d{1,3}(,\d{3})+", match[1]):
        return None
    number = float(match[1].replace(",", "").replace("_", "")) * {"": 1, "k": 1e3, "m": 1e6}[match[2].lower()]
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else None


def integers(value: str) -> str | None:
    """Write numbers in a common form, such as 256,256 or (256, 256), as a list. Return None for other text."""
    if value.count("(") != value.count(")"):  # YAML has split the value at a comma
        return None
    parts = [part for part in re.split(r"[\s,;()\[\]]+|(?<=\d)x(?=\d)", value) if part]
    numbers = [integer(part) for part in parts]
    return f"[{','.join(number for number in numbers if number)}]" if numbers and all(numbers) else None


def check_time_limit(name: str, arguments: Mapping[str, Any] | None) -> None:
    """Raise `UsageError` if the time limit in the arguments of an environment is not an integer."""
    limit = (arguments or {}).get("max_episode_steps")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        written = integer(str(limit))
        fix = f"Use {written}." if written else "Use a number of steps."
        raise UsageError(f"{name}.max_episode_steps must be an integer, got {limit}. {fix}")


def rest(words: Sequence[str], key: str) -> str:
    """Return the words from a flag to the next flag, "" if the flag was not typed."""
    flags = [number for number, word in enumerate(words) if word.split("=", 1)[0] == f"--{key}"]
    if not flags:
        return ""
    first = words[flags[-1]].partition("=")[2]
    following = words[flags[-1] + 1 :]
    end = next((number for number, word in enumerate(following) if word.startswith("--")), len(following))
    return " ".join([first, *following[:end]]).strip()
