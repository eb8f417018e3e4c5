"""The weight files of the original TD3 and of programs that came from it, written and read without loss.

NAME_actor and NAME_critic are state dicts, NAME_actor_optimizer and NAME_critic_optimizer Adam's, as `TD3.save` of
https://github.com/sfujim/TD3 has them. Those programs have the critics' layers one after the other; here they are on
an axis, and their weights transposed. NAME_actor_target and NAME_critic_target are ours: the other programs look for no
such files, and begin with targets equal to the online weights.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from td3_lightning.algorithm.td3 import TD3
from td3_lightning.atomic_files import atomic_write
from td3_lightning.errors import UsageError, one_line

Tensors = Sequence[Tensor]  # weight, bias, weight, bias, ... of layers that follow each other


Rearrange = Callable[[Tensors], list[Tensor]]


NETWORKS = {"actor": "actor", "critic": "critics", "actor_target": "actor_target", "critic_target": "critics_target"}


# How a program names its layers, and how its files end: `number` counts over all critics, `place` in a Sequential.
STYLES = {
    "original": {"actor": "l{number}", "critic": "l{number}", "end": ""},
    "notebook": {"actor": "layers.{place}", "critic": "layers_q{critic}.{place}", "end": ""},
    "blog": {"actor": "layer_{number}", "critic": "layer_{number}", "end": ".pth"},
}


MOMENTS = ("exp_avg", "exp_avg_sq")


ONE_SAVE = 60.0  # seconds within which a program writes all its files


SAME_ADAM = ("betas", "eps", "weight_decay", "amsgrad", "maximize")  # else its state would mean something else here


def write_weight_files(checkpoint: Mapping[str, Any], path: str | Path, style: str = "original") -> list[Path]:
    """Writes a checkpoint's networks and Adam's state as another program wants them.

    Args:
        checkpoint: What `read_checkpoint` gives.
        path: How the files' names begin, such as "models/car" for models/car_actor.
        style: Whose names the layers get: "original", "notebook" or "blog".

    Returns:
        The files; Adam's are not among them if the checkpoint holds no optimizers.

    Raises:
        UsageError: The agent is none that these programs can have.
    """
    _check_expressible(checkpoint)
    critics = checkpoint["hyper_parameters"]["num_critics"]
    contents: dict[str, Any] = {}
    for name, prefix in NETWORKS.items():
        ours = [value for key, value in checkpoint["state_dict"].items() if key.startswith(f"{prefix}.layers.")]
        theirs = _rearrange(name, _apart)(ours)
        contents[name] = dict(zip(_names(style, name, len(theirs), critics), theirs, strict=True))
    for name, state in zip(("actor", "critic"), checkpoint.get("optimizer_states", ()), strict=False):
        contents[f"{name}_optimizer"] = _their_adam(state, _rearrange(name, _apart), len(contents[name]))
    files = {name: Path(f"{path}_{name}{STYLES[style]['end']}") for name in contents}
    for name, file in files.items():
        atomic_write(file, lambda opened, content=contents[name]: torch.save(content, opened))  # type: ignore[misc]
    return list(files.values())


def read_weight_files(model: TD3, path: str | Path) -> list[dict[str, Any]]:
    """Puts another program's networks into a TD3 of the same size, and takes over its count of updates.

    Args:
        model: Whose weights are replaced; targets that have no files become equal to the online weights.
        path: How the files' names begin, such as "models/car" for models/car_actor.

    Returns:
        The state of the actor's Adam and of the critics', in the order of `configure_optimizers`; none without files.

    Raises:
        UsageError: A file is missing or unfit, or is of other sizes or of another Adam than the model's.
    """
    critics = model.critics.num_critics

    def together(theirs: Tensors) -> list[Tensor]:
        return _together(theirs, critics)

    for name, prefix in NETWORKS.items():
        file = _find(path, name) or _find(path, name.removesuffix("_target"))
        if file is None:
            raise UsageError(f"There is no {path}_{name}; give what stands before _actor in the files' names.")
        online = _find(path, name.removesuffix("_target")) or file
        if file.stat().st_mtime < online.stat().st_mtime - ONE_SAVE:
            rank_zero_warn(f"{file} is older than {online}; if it is of a training before, delete it and import again.")
        theirs = _in_order(_read(file), name, critics, file)
        ours = [weight.data for weight in model.get_submodule(f"{prefix}.layers").parameters()]
        _check_shapes(_rearrange(name, _apart)(ours), theirs, file)
        for one, other in zip(ours, _rearrange(name, together)(theirs), strict=True):
            one.copy_(other)
    adams = zip(("actor", "critic"), model.configure_optimizers(), strict=True)
    found = [
        (adam, file, _rearrange(name, together)) for name, adam in adams if (file := _find(path, f"{name}_optimizer"))
    ]
    if len(found) < 2:
        return []
    states = [_our_adam(*each) for each in found]
    model.updates = int(next((entry["step"] for entry in states[1]["state"].values()), 0))
    return states


# Networks.


def _names(style: str, network: str, tensors: int, critics: int) -> list[str]:
    """The names of a network's tensors, in the order of a module's parameters."""
    kind = network.removesuffix("_target")
    layers = max(tensors // 2 // (critics if kind == "critic" else 1), 1)
    counted = [divmod(number, layers) for number in range(tensors // 2)]
    return [
        STYLES[style][kind].format(number=critic * layers + layer + 1, critic=critic + 1, place=2 * layer) + part
        for critic, layer in counted
        for part in (".weight", ".bias")
    ]


def _rearrange(network: str, critics: Rearrange) -> Rearrange:
    """An actor's tensors are the same everywhere."""
    return critics if network.startswith("critic") else list


def _apart(batched: Tensors) -> list[Tensor]:
    """(N, fan_in, fan_out) weights and (N, 1, fan_out) biases as torch's (fan_out, fan_in) and (fan_out,), N times."""
    layers = list(zip(batched[::2], batched[1::2], strict=True))
    return [
        tensor.contiguous()
        for critic in range(len(batched[0]))
        for weight, bias in layers
        for tensor in (weight[critic].T, bias[critic, 0])
    ]


def _together(apart: Tensors, critics: int) -> list[Tensor]:
    """What `_apart` took apart."""
    each = len(apart) // critics
    groups = [torch.stack(list(apart[at::each])) for at in range(each)]  # (N, fan_out, fan_in), (N, fan_out), ...
    return [group.mT.contiguous() if group.ndim == 3 else group.unsqueeze(1) for group in groups]


def _in_order(state: Mapping[str, Tensor], network: str, critics: int, file: Path) -> list[Tensor]:
    """A state dict's tensors in the order of a module's parameters, by the names of whichever style."""
    for style in STYLES:
        names = _names(style, network, len(state), critics)
        if set(names) == set(state):
            return [state[name] for name in names]
    wanted = _names("original", network, 6, critics)[:3]
    raise UsageError(
        f"{file} holds {', '.join(map(str, state))}, but the layers of a TD3's {network} are wanted, such as "
        f"{', '.join(wanted)}; give files of the original TD3, of the notebook or of the blog."
    )


def _check_shapes(ours: Tensors, theirs: Tensors, file: Path) -> None:
    held, wanted = ([tuple(tensor.shape) for tensor in tensors] for tensors in (theirs, ours))
    if held != wanted:
        raise UsageError(
            f"{file} holds tensors of the shapes {held}, but the model has {wanted}; give the sizes of the networks in "
            "model.hidden_dims and model.num_critics, and the environment that they were trained in."
        )


def _check_expressible(checkpoint: Mapping[str, Any]) -> None:
    settings, weights = checkpoint["hyper_parameters"], checkpoint["state_dict"]
    if settings["layer_norm"] or settings.get("encoder"):
        raise UsageError(
            "The agent has LayerNorm or an encoder, for which these files have no place; export one without."
        )
    if weights["actor.centre"].any() or (weights["actor.scale"] != weights["actor.scale"][0]).any():
        low, high = settings["action_low"], settings["action_high"]
        raise UsageError(
            f"The original has one bound for all actions and both directions, but this agent's are {low} to {high}; "
            "train it with td3_lightning.SymmetricActionBounds among data.wrappers."
        )


# Adam.


def _their_adam(state: Mapping[str, Any], rearrange: Rearrange, parameters: int) -> dict[str, Any]:
    """Adam's state as torch would save it for so many parameters, with the settings of a plain Adam."""
    (group,) = state["param_groups"]
    plain = torch.optim.Adam([torch.zeros(1)], lr=group["lr"]).state_dict()["param_groups"][0]
    return {
        "state": _rearranged(state["state"], rearrange),
        "param_groups": [{**plain, "params": list(range(parameters))}],
    }


def _our_adam(adam: torch.optim.Optimizer, file: Path, rearrange: Rearrange) -> dict[str, Any]:
    """The state that a file holds, for our Adam's parameters."""
    state, ours = _read(file), adam.state_dict()["param_groups"]
    if not _is_adams(state):
        raise UsageError(f"{file} holds no state of an Adam; export it again, or leave out both _optimizer files.")
    for name in SAME_ADAM:
        held = [group.get(name, ours[0][name]) for group in state["param_groups"]]
        if held != [ours[0][name]]:
            raise UsageError(f"{file} is of an Adam with {name}={held}, but here it is {ours[0][name]}; leave it out.")
    try:
        entries = _rearranged(state["state"], rearrange)
    except RuntimeError as error:  # tensors that are not alike do not make a stack
        raise UsageError(
            f"{file} holds an Adam of other networks ({one_line(error)}); give the one that was saved with them."
        ) from error
    for moment in MOMENTS if entries else ():
        _check_shapes(adam.param_groups[0]["params"], [entry[moment] for entry in entries.values()], file)
    return {"state": entries, "param_groups": ours}


def _is_adams(state: Mapping[str, Any]) -> bool:
    """Whether it has the parts of one, with moments for all parameters or for none."""
    if not {"state", "param_groups"} <= state.keys():
        return False
    return all({"step", *MOMENTS} <= entry.keys() for entry in state["state"].values())


def _rearranged(entries: Mapping[int, Mapping[str, Any]], rearrange: Rearrange) -> dict[int, dict[str, Any]]:
    """Adam's moments and steps for each parameter, the moments being rearranged as the parameters are."""
    if not entries:  # before the first step
        return {}
    step = torch.as_tensor(entries[0]["step"], dtype=torch.float32)  # a plain number in old files
    moments = [rearrange([entries[at][name] for at in sorted(entries)]) for name in MOMENTS]
    return {
        at: {"step": step.clone(), **dict(zip(MOMENTS, pair, strict=True))}
        for at, pair in enumerate(zip(*moments, strict=True))
    }


# Files.


def _find(path: str | Path, name: str) -> Path | None:
    files = [Path(f"{path}_{name}{end}") for end in dict.fromkeys(style["end"] for style in STYLES.values())]
    return next((file for file in files if file.is_file()), None)


def _read(file: Path) -> dict[Any, Any]:
    """Loads tensors and plain values; what could run code is refused."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, OSError) as error:
        raise UsageError(f"{file} is no file of weights, or is damaged, or could run code; export it again.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds a {type(content).__name__}, but a state dict is wanted; give another file.")
    return content
