"""Read and write the weight files of the original TD3 and of programs derived from it, without loss.

NAME_actor and NAME_critic are state dicts. NAME_actor_optimizer and NAME_critic_optimizer are states of Adam. They are
the files of `TD3.save` in https://github.com/sfujim/TD3. Those programs store the layers of the critics one after the
other. This package stacks them on an axis and transposes the weights. NAME_actor_target and NAME_critic_target are an
extension: the other programs ignore these files and initialize the targets with the online weights.
"""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.atomic_files import atomic_write_all
from td3_lightning.errors import UsageError, shown
from td3_lightning.interop.metadata import check_trained, is_imported
from td3_lightning.interop.original_adam import Rearrange, Tensors, is_dense, our_adam, shapes, their_adam
from td3_lightning.serialization.checkpoint_file import check_old_file, checked_archive

NETWORKS = {"actor": "actor", "critic": "critics", "actor_target": "actor_target", "critic_target": "critics_target"}
# Layer names and file suffix of each program. `number` counts the layers of all critics, `place` is the index in a
# Sequential.
STYLES = {
    "original": {"actor": "l{number}", "critic": "l{number}", "end": ""},
    "notebook": {"actor": "layers.{place}", "critic": "layers_q{critic}.{place}", "end": ""},
    "blog": {"actor": "layer_{number}", "critic": "layer_{number}", "end": ".pth"},
}

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
        UsageError: The files cannot represent the agent, or it is untrained or has diverged. Nothing is written.
        OSError: A file cannot be written. Files of an earlier export are unchanged.
    """
    _check_representable(checkpoint)
    check_trained(checkpoint["clocks"]["updates"], checkpoint["state_dict"], is_imported(checkpoint))
    critics = checkpoint["hyper_parameters"]["num_critics"]
    contents: dict[str, Any] = {}
    for name, prefix in NETWORKS.items():
        ours = [value for key, value in checkpoint["state_dict"].items() if key.startswith(f"{prefix}.layers.")]
        theirs = _rearrange(name, _unstack)(ours)
        contents[name] = dict(zip(_names(style, name, len(theirs), critics), theirs, strict=True))
    for name, state in zip(("actor", "critic"), checkpoint.get("optimizer_states", ()), strict=False):
        contents[f"{name}_optimizer"] = their_adam(state, _rearrange(name, _unstack), len(contents[name]))
    files = {name: Path(f"{path}_{name}{STYLES[style]['end']}") for name in contents}
    atomic_write_all({file: partial(torch.save, contents[name]) for name, file in files.items()})
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
    if model.settings.normalize_observations:
        raise UsageError(
            "import requires model.normalize_observations to be false, got true. The weights are for raw observations."
        )
    if model.settings.normalize_rewards:
        raise UsageError(
            "import requires model.normalize_rewards to be false, got true. The critics are for raw rewards."
        )
    if model.algorithm != "TD3":
        raise UsageError(f"import requires TD3, got {model.algorithm}. Use --model td3_lightning.TD3.")
    if model.actor.centre.any() or (model.actor.scale != model.actor.scale[0]).any():
        raise UsageError(
            f"import requires equal action bounds of the form [-x, x], got {model.settings.action_low} to "
            f"{model.settings.action_high}. Use td3_lightning.SymmetricActionBounds in data.wrappers."
        )
    for name, prefix in NETWORKS.items():
        _read_network(model, path, name, prefix)
    stack = partial(_stack, critics=model.critics.num_critics)
    adams = zip(("actor", "critic"), model.configure_optimizers(), strict=True)
    found = [(name, adam, file) for name, adam in adams if (file := _find(path, f"{name}_optimizer"))]
    if len(found) < 2:
        return []
    states = []
    for name, adam, file in found:
        if (online := _find(path, name)) is not None:
            _warn_if_older(file, online)
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
    if online is not None:
        _warn_if_older(file, online)
    theirs = _in_order(_read(file), name, critics, file)
    ours = [weight.data for weight in model.get_submodule(f"{prefix}.layers").parameters()]
    _check_shapes(_rearrange(name, _unstack)(ours), theirs, file)
    if not all(value.float().isfinite().all() for value in theirs):  # of a larger type, a number may not fit
        raise UsageError(f"{file} must have finite weights, got others. Use the file of a run that has not diverged.")
    for weight, value in zip(ours, _rearrange(name, partial(_stack, critics=critics))(theirs), strict=True):
        weight.copy_(value)


def _warn_if_older(file: Path, online: Path) -> None:
    """Warn if a file is much older than that of the online network."""
    if file.stat().st_mtime < online.stat().st_mtime - MAX_SAVE_SECONDS:
        rank_zero_warn(f"{file} is older than {online}. If it is from an earlier training, delete it and import again.")


# Networks.


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
            return [_dense(state[name], name, file) for name in names]
    expected = _names("original", network, 6, critics)[:3]
    raise UsageError(
        f"{file} must contain the layers of a TD3's {network} (for example {', '.join(expected)}), got "
        f"{', '.join(map(str, state))}. Use files of the original TD3, the notebook or the blog."
    )


def _dense(value: Any, name: str, file: Path) -> Tensor:
    """Return an ordinary tensor of floats, or raise `UsageError`."""
    if not is_dense(value):
        raise UsageError(f"{name} in {file} must be a dense tensor of floats, got {shown(value)}. Export it again.")
    return value  # type: ignore[no-any-return]


def _check_shapes(ours: Tensors, theirs: Tensors, file: Path) -> None:
    got, expected = shapes(theirs), shapes(ours)
    if got != expected:
        raise UsageError(
            f"{file} must contain tensors of the shapes {expected}, got {got}. Set model.hidden_dims, "
            "model.num_critics and data.env_id to the values of the training."
        )


def _check_representable(checkpoint: Mapping[str, Any]) -> None:
    settings, weights = checkpoint["hyper_parameters"], checkpoint["state_dict"]
    if checkpoint.get("algorithm", "TD3") != "TD3":
        raise UsageError(
            f"export requires a checkpoint of TD3, got one of {checkpoint['algorithm']}. Use another checkpoint."
        )
    if settings["layer_norm"] or settings.get("encoder") or settings.get("critic_encoder"):
        raise UsageError(
            "export requires an agent without LayerNorm and encoder, got one with LayerNorm or an encoder. Use another "
            "checkpoint."
        )
    if settings.get("normalize_observations"):
        raise UsageError(
            "export requires an agent that acts on raw observations, got one with normalize_observations. Use another "
            "checkpoint."
        )
    if settings.get("normalize_rewards"):
        raise UsageError(
            "export requires critics of raw rewards, got an agent with normalize_rewards. Use another checkpoint, or "
            "export the policy with --format onnx."
        )
    if weights["actor.centre"].any() or (weights["actor.scale"] != weights["actor.scale"][0]).any():
        low, high = settings["action_low"], settings["action_high"]
        raise UsageError(
            f"export requires equal action bounds of the form [-x, x], got {low} to {high}. Train with "
            "td3_lightning.SymmetricActionBounds in data.wrappers."
        )


# Files.


def _find(path: str | Path, name: str) -> Path | None:
    files = [Path(f"{path}_{name}{end}") for end in dict.fromkeys(style["end"] for style in STYLES.values())]
    found = [file for file in files if file.is_file()]
    if len(found) > 1:
        raise UsageError(f"files must be those of one program, got {found[0]} and {found[1]}. Move one of them away.")
    return found[0] if found else None


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
