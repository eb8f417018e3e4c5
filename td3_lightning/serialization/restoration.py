"""Checks of a checkpoint against the module and the Trainer that load it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from td3_lightning.errors import UsageError
from td3_lightning.serialization import values as form
from td3_lightning.serialization.callback_states import check_callbacks
from td3_lightning.serialization.checkpoint_schema import ALGORITHMS, averaging_state, check_checkpoint, require_parts
from td3_lightning.serialization.configurable import Configurable, known_classes
from td3_lightning.serialization.loop_states import check_loops
from td3_lightning.serialization.optimizer_states import check_optimizers
from td3_lightning.serialization.replay_states import DATA
from td3_lightning.serialization.schema import NotNamedError, check_arguments
from td3_lightning.serialization.values import InvalidValueError
from td3_lightning.serialization.weights import check_sizes_of, check_weights

LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")


def check_restoration(checkpoint: dict[str, Any], module: L.LightningModule, strict: bool = True) -> None:
    """Check a checkpoint before any of it is used.

    Paths that lead out of the run's folder are removed, and settings become plain data, in place.

    Args:
        checkpoint: The checkpoint.
        module: The module that loads it. If a Trainer runs it, the Trainer's callbacks and loops are checked too.
        strict: Whether the weights must have the module's names.

    Raises:
        UsageError: A part is missing, malformed, or of another module.
    """
    try:
        trainer: L.Trainer | None = module.trainer
    except RuntimeError:  # Lightning raises it for a module without a Trainer
        trainer = None
    training = trainer is not None and trainer.state.fn == TrainerFn.FITTING
    try:
        check_checkpoint(checkpoint)
        require_parts(checkpoint, training)
        check_algorithm(checkpoint, type(module))
        check_weights(checkpoint, module, strict)
        if trainer is not None:
            _check_for_trainer(checkpoint, trainer, training)
        if training:
            _check_for_training(checkpoint, module)
    except InvalidValueError as error:
        path = trainer.ckpt_path if trainer is not None else None
        raise refused(error, path or "The checkpoint") from error


def check_algorithm(checkpoint: Mapping[str, Any], kind: type) -> None:
    """Check that a checkpoint holds the agent of a class, or of its base class; raise `InvalidValueError` if not."""
    expected, held = getattr(kind, "algorithm", None), checkpoint.get("algorithm", ALGORITHMS[0])
    if expected not in (None, held):
        raise InvalidValueError("algorithm", f"{expected!r}, the agent that loads it", held)
    owner = checkpoint.get("policy_class")
    if expected is not None and owner is not None and owner not in [base.__name__ for base in kind.__mro__]:
        raise UsageError(
            f"The checkpoint of a {owner} must be loaded by that class, which changes the policy, got {kind.__name__}. "
            f"Use {owner}.load_from_checkpoint, or a Trainer with {owner}."
        )


def changes_policy(kind: type) -> bool:
    """Return whether the class of an agent has other networks or computes other actions than this package's class."""
    own = next(base for base in kind.__mro__ if base.__module__.split(".")[0] == __name__.split(".")[0])
    return any(getattr(kind, name) is not getattr(own, name) for name in ("build_networks", "forward", "act"))


def stored_arguments(kind: type, checkpoint: dict[str, Any], path: Any, given: Iterable[str]) -> dict[str, Any]:
    """Return the hyperparameters in a checkpoint that a class's constructor takes, after checking their types.

    Args:
        kind: The class.
        checkpoint: The checkpoint, as `read_checkpoint` returns it.
        path: Its path, for the message.
        given: Names of the arguments that the user gives.

    Raises:
        UsageError: One is missing, has another type, or names a class that is neither ours nor imported.
    """
    stored: Any = checkpoint.get("hyper_parameters")
    own: dict[str, Any] = {}
    try:
        form.mapping(stored, "hyper_parameters")
        check_algorithm(checkpoint, kind)
        for constructor in _constructors(kind):
            known = inspect.signature(constructor).parameters
            _check_required(constructor, {*stored, *given})
            _warn_of_defaults(constructor, {*stored, *given})
            part = {key: value for key, value in stored.items() if key in known and key not in (*own, *given)}
            check_arguments(part, constructor, "hyper_parameters", _is_imported)
            own.update(part)
        check_sizes_of(own, checkpoint.get("state_dict"), "hyper_parameters")
    except InvalidValueError as error:
        raise refused(error, path) from error
    except NotNamedError as error:
        raise UsageError(
            f"{path} names {error.named!r} in {error.setting}, which is not part of td3_lightning. If you trust it, "
            "import it as an Encoder or another Configurable before you load the checkpoint, or pass the argument "
            "yourself."
        ) from error
    return own


def _constructors(kind: type) -> Iterator[Callable[..., None]]:
    """Yield a class's constructor, and those of its bases that receive its other arguments."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            constructor = vars(base)["__init__"]
            yield constructor
            kinds = [parameter.kind for parameter in inspect.signature(constructor).parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                return


def _check_required(constructor: Callable[..., None], present: set[str]) -> None:
    """Check that each parameter without a default has a value; the first one is `self`."""
    for name, parameter in list(inspect.signature(constructor).parameters.items())[1:]:
        named = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if not named or parameter.default is not inspect.Parameter.empty or name in present:
            continue
        if constructor.__module__.split(".")[0] == __name__.split(".")[0]:
            raise InvalidValueError(f"hyper_parameters.{name}", "in the checkpoint", None)
        raise UsageError(
            f"{name} must be given, because the checkpoint does not hold it, got nothing. Pass {name}=... to "
            f"load_from_checkpoint, or call save_hyperparameters({{{name!r}: {name}}}) in the constructor, and train "
            "again."
        )


def _warn_of_defaults(constructor: Callable[..., None], present: set[str]) -> None:
    """Warn of arguments of a user's class that the checkpoint lacks, so that they have their defaults."""
    if constructor.__module__.split(".")[0] == __name__.split(".")[0]:
        return
    for name, parameter in inspect.signature(constructor).parameters.items():
        if parameter.default is not inspect.Parameter.empty and name not in present:
            rank_zero_warn(
                f"{name} is not in the checkpoint, so its default, {parameter.default!r}, is used. Pass {name}=..., or "
                f"call save_hyperparameters({{{name!r}: {name}}}) in the constructor, and train again."
            )


def _is_imported(named: str, setting: str) -> bool:
    """Return whether a text names an encoder, a schedule or another imported Configurable."""
    return named in known_classes(Configurable)


def refused(error: InvalidValueError, path: Any) -> UsageError:
    """Build the error for a malformed checkpoint."""
    return UsageError(f"{path} is refused: {error}. Use a checkpoint that a run of this model has saved.")


def _check_for_trainer(checkpoint: dict[str, Any], trainer: L.Trainer, training: bool) -> None:
    if "loops" in checkpoint:
        used = LOOPS if not training else LOOPS[:1]
        check_loops(checkpoint["loops"], ((name, getattr(trainer, name).state_dict()) for name in used))
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]  # set without a type
    check_callbacks(checkpoint.get("callbacks", {}), callbacks, str(Path(str(trainer.ckpt_path)).parent))


def _check_for_training(checkpoint: dict[str, Any], module: L.LightningModule) -> None:
    if "current_model_state" in checkpoint:
        averaging_state(checkpoint.get("averaging_state"), "averaging_state")
    optimizers: Any = module.configure_optimizers()
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    if isinstance(optimizers, list | tuple) and all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
        check_optimizers(checkpoint["optimizer_states"], list(optimizers))
    data: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # set without a type
    action_dim, envs = len(getattr(data, "action_low", [])), getattr(data, "_envs", None)
    name = type(data).__qualname__
    if not action_dim or name not in checkpoint:
        return
    DATA(checkpoint[name], name)
    generators = [] if envs is None else envs.group.generators()
    for rank in checkpoint[name]["ranks"]:
        _check_episodes(rank.get("envs", {}).get("episodes", []), action_dim, generators)


def _check_episodes(episodes: list[dict[str, Any]], action_dim: int, generators: list[str]) -> None:
    """Check running episodes against the environments that play them again, also in workers.

    A vector environment has no generators here, because it does not play them again.
    """
    for index, (episode, ours) in enumerate(zip_longest(episodes, generators[: len(episodes)])):
        actions, name = episode["actions"], f"episodes.{index}"
        if actions.numel() and (actions.shape[1:] != (action_dim,) or not actions.is_floating_point()):
            raise InvalidValueError(f"{name}.actions", f"a list of actions of {action_dim} numbers", actions)
        kind = episode.get("generator", {}).get("bit_generator")
        if None not in (kind, ours) and kind != ours:
            raise InvalidValueError(f"{name}.generator.bit_generator", repr(ours), kind)
