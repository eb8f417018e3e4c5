"""Read and write the weight files of the original TD3 and of programs derived from it, without loss.

NAME_actor and NAME_critic are state dicts. NAME_actor_optimizer and NAME_critic_optimizer are states of Adam. They are
the files of `TD3.save` in https://github.com/sfujim/TD3. Those programs store the layers of the critics one after the
other. This package stacks them on an axis and transposes the weights. NAME_actor_target and NAME_critic_target are an
extension: the other programs ignore these files and initialize the targets with the online weights.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import UsageError, shown
from td3_lightning.interop.metadata import check_trained, is_imported
from td3_lightning.serialization.checkpoint_file import check_old_file, checked_archive

Tensors = Sequence[Tensor]  # weight, bias, weight, bias, ... of consecutive layers
Rearrange = Callable[[Tensors], list[Tensor]]

NETWORKS = {"actor": "actor", "critic": "critics", "actor_target": "actor_target", "critic_target": "critics_target"}
# Layer names and file suffix of each program. `number` counts the layers of all critics, `place` is the index in a
# Sequential.
STYLES = {
    "original": {"actor": "l{number}", "critic": "l{number}", "end": ""},
    "notebook": {"actor": "layers.{place}", "critic": "layers_q{critic}.{place}", "end": ""},
    "blog": {"actor": "layer_{number}", "critic": "layer_{number}", "end": ".pth"},
}
MOMENTS = ("exp_avg", "exp_avg_sq")
ADAM_SETTINGS = ("betas", "eps", "weight_decay", "amsgrad", "maximize")  # must match, because the state depends on them
# Settings of agents that the files cannot represent.
UNKNOWN_SETTINGS = ("layer_norm", "encoder", "normalize_observations")
MAX_SAVE_SECONDS = 60.0  # time in which a program writes all its files


def write_weight_files(checkpoint: Mapping[str, Any], path: str | Path, style: str = "original") -> list[Path]:
    """Write the networks and the state of Adam of a checkpoint as files of another program.

    Args:
        checkpoint: Checkpoint, as returned by `read_checkpoint`.
        path: Prefix of the file names, for example "models/car" for models/car_actor.
        style: Naming of the layers: "original", "notebook" or "blog".

    Returns:
        The paths of the files, without those of Adam if the checkpoint contains no optimizers.

    Raises:
        UsageError: The files cannot represent the agent, or it is untrained. Nothing is written.
        OSError: A file cannot be written. No file is incomplete.
    """
    settings, algorithm = checkpoint["hyper_parameters"], checkpoint.get("algorithm", "TD3")
    check_exchangeable("export", algorithm, settings, checkpoint["state_dict"])
    check_trained(checkpoint["clocks"]["updates"], is_imported(checkpoint))
    contents: dict[str, Any] = {}
    for name, prefix in NETWORKS.items():
        ours = [value for key, value in checkpoint["state_dict"].items() if key.startswith(f"{prefix}.layers.")]
        theirs = _rearrange(name, _unstack)(ours)
        contents[name] = dict(zip(_names(style, name, len(theirs), settings["num_critics"]), theirs, strict=True))
    for name, state in zip(("actor", "critic"), checkpoint.get("optimizer_states", ()), strict=False):
        contents[f"{name}_optimizer"] = their_adam(state, _rearrange(name, _unstack), len(contents[name]))
    files = {name: Path(f"{path}_{name}{STYLES[style]['end']}") for name in contents}
    for name, file in files.items():
        atomic_write(file, partial(torch.save, contents[name]))
    return list(files.values())


def read_weight_files(model: TD3, path: str | Path) -> list[dict[str, Any]]:
    """Read the networks of another program into a TD3 of the same size, and set its number of updates.

    Args:
        model: Agent that receives the weights. A target without a file gets the online weights.
        path: Prefix of the file names, for example "models/car" for models/car_actor.

    Returns:
        The states of the actor's and the critics' Adam, in the order of `configure_optimizers`. The list is empty
        unless both files exist.

    Raises:
        UsageError: A file is missing or invalid, or its shapes or settings of Adam differ from those of the model.
    """
    check_exchangeable("import", model.algorithm, model.hparams, model.state_dict())
    for name, prefix in NETWORKS.items():
        _read_network(model, path, name, prefix)
    stack = partial(_stack, critics=model.critics.num_critics)
    adams = zip(("actor", "critic"), model.configure_optimizers(), strict=True)
    found = [(name, adam, file) for name, adam in adams if (file := _find(path, f"{name}_optimizer"))]
    if len(found) < 2:
        return []
    states = []
    for name, adam, file in found:
        theirs = _rearrange(name, _unstack)(adam.param_groups[0]["params"])
        states.append(our_adam(_read(file), file, adam, theirs, _rearrange(name, stack)))
    model.updates = int(next((entry["step"] for entry in states[1]["state"].values()), 0))
    return states


def _read_network(model: TD3, path: str | Path, name: str, prefix: str) -> None:
    """Copy the weights of one network from its file, or from the file of the online network."""
    critics = model.critics.num_critics
    online = _find(path, name.removesuffix("_target"))
    file = _find(path, name) or online
    if file is None:
        raise UsageError(
            f"files must be the prefix of existing files, got {path} without {path}_{name}. Use the part of the file "
            "names before _actor."
        )
    if online is not None and file.stat().st_mtime < online.stat().st_mtime - MAX_SAVE_SECONDS:
        rank_zero_warn(f"{file} is older than {online}. If it is from an earlier training, delete it and import again.")
    theirs = _in_order(_read(file), name, critics, file)
    ours = [weight.data for weight in model.get_submodule(f"{prefix}.layers").parameters()]
    got, expected = shapes(theirs), shapes(_rearrange(name, _unstack)(ours))
    if got != expected:
        raise UsageError(
            f"{file} must contain tensors of the shapes {expected}, got {got}. Set model.hidden_dims, "
            "model.num_critics and data.env_id to the values of the training."
        )
    if not all(value.float().isfinite().all() for value in theirs):  # of a larger type, a number may not fit
        raise UsageError(f"{file} must have finite weights, got others. Use the file of a run that has not diverged.")
    for weight, value in zip(ours, _rearrange(name, partial(_stack, critics=critics))(theirs), strict=True):
        weight.copy_(value)


def check_exchangeable(
    command: str, algorithm: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Raise `UsageError` if the files of a command cannot represent an agent, given its hyperparameters and weights."""
    if algorithm != "TD3":
        raise UsageError(f"{command} requires TD3, got {algorithm}. Use TD3, or export with --format onnx.")
    for name in UNKNOWN_SETTINGS:
        if settings.get(name):
            raise UsageError(
                f"{command} requires model.{name} to be unset, got {shown(settings[name])}, which the files cannot "
                "represent. Use another agent, or export with --format onnx."
            )
    centre, scale = weights["actor.centre"], weights["actor.scale"]
    if centre.any() or (scale != scale[0]).any():
        raise UsageError(
            f"{command} requires equal action bounds of the form [-x, x], got {settings['action_low']} to "
            f"{settings['action_high']}. Use td3_lightning.SymmetricActionBounds in data.wrappers."
        )


def _names(style: str, network: str, tensors: int, critics: int) -> list[str]:
    """Return the names of the tensors of a network, in the order of a module's parameters."""
    kind = network.removesuffix("_target")
    layers = max(tensors // 2 // (critics if kind == "critic" else 1), 1)
    counted = [divmod(number, layers) for number in range(tensors // 2)]
    return [
        STYLES[style][kind].format(number=critic * layers + layer + 1, critic=critic + 1, place=2 * layer) + part
        for critic, layer in counted
        for part in (".weight", ".bias")
    ]


def _rearrange(network: str, critics: Rearrange) -> Rearrange:
    """Return the conversion of a network. The tensors of an actor are the same in all programs."""
    return critics if network.startswith("critic") else list


def _unstack(batched: Tensors) -> list[Tensor]:
    """Convert (N, fan_in, fan_out) weights and (N, 1, fan_out) biases to N times (fan_out, fan_in) and (fan_out,)."""
    layers = list(zip(batched[::2], batched[1::2], strict=True))
    return [
        tensor.contiguous()
        for critic in range(len(batched[0]))
        for weight, bias in layers
        for tensor in (weight[critic].T, bias[critic, 0])
    ]


def _stack(unstacked: Tensors, critics: int) -> list[Tensor]:
    """Revert `_unstack`."""
    per_critic = len(unstacked) // critics
    # (N, fan_out, fan_in), (N, fan_out), ...
    groups = [torch.stack(list(unstacked[at::per_critic])) for at in range(per_critic)]
    return [group.mT.contiguous() if group.ndim == 3 else group.unsqueeze(1) for group in groups]


def _in_order(state: Mapping[str, Tensor], network: str, critics: int, file: Path) -> list[Tensor]:
    """Return the tensors of a state dict in the order of a module's parameters, for any naming style."""
    for style in STYLES:
        names = _names(style, network, len(state), critics)
        if set(names) == set(state):
            return [state[name] for name in names]
    expected = _names("original", network, 6, critics)[:3]
    raise UsageError(
        f"{file} must contain the layers of a TD3's {network} (for example {', '.join(expected)}), got "
        f"{', '.join(map(str, state))}. Use files of the original TD3, the notebook or the blog."
    )


def shapes(tensors: Tensors) -> list[tuple[int, ...]]:
    """Return the shapes of tensors."""
    return [tuple(tensor.shape) for tensor in tensors]


def their_adam(state: Mapping[str, Any], rearrange: Rearrange, parameters: int) -> dict[str, Any]:
    """Convert a state of Adam to the state of torch's default Adam for a number of parameters."""
    (group,) = state["param_groups"]
    plain = torch.optim.Adam([torch.zeros(1)], lr=group["lr"]).state_dict()["param_groups"][0]
    return {
        "state": _rearranged(state["state"], rearrange),
        "param_groups": [{**plain, "params": list(range(parameters))}],
    }


def our_adam(
    state: Mapping[Any, Any], file: Path, adam: torch.optim.Optimizer, expected: Tensors, rearrange: Rearrange
) -> dict[str, Any]:
    """Convert the state of Adam in a file to that of an optimizer of this package.

    Raises:
        UsageError: The content is not a state of Adam, or its settings or shapes are not the expected ones.
    """
    ours = adam.state_dict()["param_groups"]
    try:
        entries, groups = state["state"], state["param_groups"]
        held = [shapes([entries[at][moment] for at in sorted(entries)]) for moment in MOMENTS]
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} must contain a state of Adam, got another object. Remove both _optimizer files."
        ) from error
    for name in ADAM_SETTINGS:
        got = [group.get(name, ours[0][name]) for group in groups]
        if got != [ours[0][name]]:
            raise UsageError(
                f"{name} in {file} must be {ours[0][name]}, got {shown(got)}. Remove both _optimizer files."
            )
    if entries and held != [shapes(expected)] * 2:
        raise UsageError(
            f"{file} must contain the Adam of these networks, got moments of the shapes {held[0]}. Use the file that "
            "was saved with the networks."
        )
    return {"state": _rearranged(entries, rearrange), "param_groups": ours}


def _rearranged(entries: Mapping[int, Mapping[str, Any]], rearrange: Rearrange) -> dict[int, dict[str, Any]]:
    """Convert the moments and steps of Adam in the same way as the parameters."""
    if not entries:  # before the first step
        return {}
    step = torch.as_tensor(entries[0]["step"], dtype=torch.float32)  # a plain number in old files
    moments = [rearrange([entries[at][name] for at in sorted(entries)]) for name in MOMENTS]
    return {
        at: {"step": step.clone(), **dict(zip(MOMENTS, pair, strict=True))}
        for at, pair in enumerate(zip(*moments, strict=True))
    }


def _find(path: str | Path, name: str) -> Path | None:
    files = [Path(f"{path}_{name}{end}") for end in dict.fromkeys(style["end"] for style in STYLES.values())]
    return next((file for file in files if file.is_file()), None)


def _read(file: Path) -> dict[Any, Any]:
    """Load tensors and plain values. Files that could run code are refused."""
    try:
        with file.open("rb") as opened:
            if zipfile.is_zipfile(opened):
                content = torch.load(checked_archive(opened), map_location="cpu", weights_only=True)
            else:
                check_old_file(opened)
                opened.seek(0)
                content = torch.load(opened, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load and zipfile raise any exception for a damaged file
        raise UsageError(
            f"{file} must be a file of weights, got one that is damaged or could run code. Export it again."
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} must contain a state dict, got a {type(content).__name__}. Use another file.")
    return content
