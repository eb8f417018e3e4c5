"""Base class of the agents: clocks, acting, evaluation and checkpoints."""

from pathlib import Path
from typing import IO, Any, TypeVar

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import WeightAveraging
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from td3_lightning.algorithm.distributed import gather_from_ranks, select_rank, stack_over_ranks, world_size
from td3_lightning.algorithm.evaluation_metrics import EvaluationMetrics
from td3_lightning.algorithm.exploration import as_noise, with_noise
from td3_lightning.errors import UsageError, shown
from td3_lightning.schedules import Constant, Schedule
from td3_lightning.seeding import new_generator
from td3_lightning.serialization.checkpoint_file import CLOCKS, FORMAT, read_checkpoint
from td3_lightning.serialization.configurable import from_config
from td3_lightning.serialization.observation_parts import flat_rows
from td3_lightning.serialization.primitives import to_primitives
from td3_lightning.serialization.stored_settings import contain_paths, stored_arguments

AgentType = TypeVar("AgentType", bound="Agent")


class Agent(L.LightningModule):
    """Base class of the agents. It acts, evaluates episodes, and saves its clocks and noise generators.

    A subclass defines `normalizer`, `actor`, `critics`, `settings`, `forward` and `training_step`.

    Args:
        obs_dim: Numbers in an observation.
        action_box: Smallest and largest actions, (action_dim,) each.
    """

    normalizer: nn.Module
    actor: Any
    critics: Any
    settings: Any

    def __init__(self, obs_dim: int, action_box: tuple[NDArray[np.float32], NDArray[np.float32]]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.obs_dim, self.action_box = obs_dim, action_box
        self.env_steps = 0  # steps taken in the training environments; the Collector counts them
        self.episodes = 0  # training episodes finished; the Collector counts them
        self.updates = 0  # critic updates
        self.clock_name = "env_steps"  # axis of the logs; "updates" in a run without environment steps
        self.observation_parts: dict[str, Any] | None = None  # structure of the environment's observations, if any
        self.counted_datasets: list[int] | None = []  # checksums of those in the statistics of `normalizer`, if known
        self.noise_generator = new_generator("target noise")
        self.act_generator = new_generator("noise of act")
        self._exploration_noise: Schedule | None = None
        self.evaluation = EvaluationMetrics()
        self.is_copied = False  # the policy is a `PolicyCheckpoint`'s, and the critics are those of another one

    @property
    def clock(self) -> int:
        """Value of the clock that `clock_name` names."""
        return int(getattr(self, self.clock_name))

    @property
    def is_new(self) -> bool:
        """Whether no step and no update was taken."""
        return not self.env_steps and not self.updates

    # The policy.

    @torch.inference_mode()
    def act(self, obs: NDArray[Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Compute actions for observations, greedy ones or with exploration noise.

        Args:
            obs: One observation (obs_dim,) or several (n, obs_dim). An agent that was trained on dict, tuple or
                discrete observations also accepts one of these.
            deterministic: False adds Gaussian noise with the standard deviation that `exploration_noise` has at
                `env_steps`. The uniformly random actions of a warm-up are not part of it.

        Returns:
            One action (action_dim,) or several (n, action_dim), in the environment's units and inside the action box.

        Raises:
            UsageError: The observations have another shape or are not finite, or the agent has no
                `exploration_noise`.
        """
        obs = flat_rows(self.observation_parts, obs, self.obs_dim)
        rows = torch.from_numpy(np.ascontiguousarray(np.atleast_2d(obs)))  # `forward` takes batches
        actions: NDArray[np.float32] = self.forward(rows.to(self.actor.scale)).float().cpu().numpy()
        action = actions if obs.ndim == 2 else actions[0]
        low, high = self.action_box
        # The end of the tanh, centre + scale, may round to just outside the box.
        clipped: NDArray[np.float32] = np.minimum(np.maximum(action, low), high)
        if deterministic:
            return clipped
        if self.exploration_noise is None:
            raise UsageError(
                "act(obs, deterministic=False) requires exploration_noise, got None. Set agent.exploration_noise to a "
                "number, for example 0.1, or train the agent with a Collector, which sets it."
            )
        # The Collector has another generator.
        normal: NDArray[np.float32] = torch.randn(action.shape, generator=self.act_generator).numpy()
        return with_noise(clipped, normal, self.exploration_noise(self.env_steps), self.action_box)

    @property
    def exploration_noise(self) -> Schedule | None:
        """Schedule of the noise of `act(obs, deterministic=False)`, relative to half the action range.

        The Collector sets it at the start of `fit`, checkpoints hold it, and a number may be assigned. A new agent has
        None.
        """
        return self._exploration_noise

    @exploration_noise.setter
    def exploration_noise(self, value: float | Schedule | None) -> None:
        self._exploration_noise = None if value is None else as_noise(value)

    def policy_modules(self) -> tuple[nn.Module, ...]:
        """Return the modules that `forward` uses."""
        encoder = (self.critics.encoder,) if self.settings.shares_encoder else ()
        return self.normalizer, self.actor, *encoder

    def policy_state(self) -> dict[str, Tensor]:
        """Return the weights and buffers of the policy by their names in `state_dict`. The memory is shared."""
        modules = self.policy_modules()
        prefixes = tuple(f"{name}." for name, module in self.named_modules() if module in modules)
        return {name: value for name, value in self.state_dict().items() if name.startswith(prefixes)}

    # Evaluation: one validation step is one episode.

    def on_validation_epoch_start(self) -> None:
        """Discard the episodes of an interrupted evaluation, and the metrics of the previous one."""
        self.evaluation.begin(self.trainer.callback_metrics)

    def validation_step(self, episode: Any, batch_idx: int) -> dict[str, float]:
        """Play an `envs.episode.Episode` without exploration noise and return its numbers."""
        with torch.autocast(self.device.type, enabled=False):  # as in the Collector and in `test`
            report: dict[str, float] = episode.play(self.act)
        self.evaluation.update(report)
        return report

    def on_validation_epoch_end(self) -> None:
        """Log the mean of each number, the spread of the return, and the clocks."""
        clocks = {name: getattr(self, name) for name in CLOCKS} | {"step": self.clock}  # "step": the loggers' axis
        exact = {name: torch.tensor(count, dtype=torch.float64) for name, count in clocks.items()}
        self.log_dict(self.evaluation.compute("test" if self.trainer.testing else "eval") | exact)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # Precision and processes.

    def setup(self, stage: str) -> None:
        """Convert to the Trainer's precision before Lightning loads weights, to keep float64 weights exact."""
        self.trainer.precision_plugin.convert_module(self)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Disable DDP's gradient averaging, which requires every parameter in every loss."""
        model = self.trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = False

    def scheduled(self, schedule: Schedule) -> float:
        """Return the value of a schedule at `env_steps`; if it varies, that of rank 0 in every process."""
        value = schedule(self.env_steps)
        if isinstance(schedule, Constant) or world_size() == 1:
            return value
        return float(stack_over_ranks(torch.tensor(value, dtype=torch.float64, device=self.device))[0])

    # Checkpoints.

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # without a file of settings
        cls: type[AgentType],
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> AgentType:
        """Load an agent from a checkpoint. An untrusted one cannot run code or import modules.

        Args:
            checkpoint_path: A local file, or a file opened for reading.
            map_location: Device for the agent, such as "cuda"; None is the CPU.
            strict: Whether the weights must have the agent's names; None is the class's `strict_loading`.
            weights_only: Not used, because it is always true.
            **kwargs: Settings that override the checkpoint's.

        Raises:
            UsageError: The checkpoint is damaged, malformed, or of another agent.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        module = cls(**{**stored_arguments(cls, checkpoint, kwargs), **kwargs})
        if strict is not None:
            module.strict_loading = strict
        module.on_load_checkpoint(checkpoint)
        module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
        return module if map_location is None else module.to(map_location)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the clocks, the noise, the structure of observations and every process's noise generators.

        Raises:
            UsageError: The state of a callback could not be loaded again.
        """
        checkpoint |= {"format": FORMAT, "clocks": {name: getattr(self, name) for name in CLOCKS}}
        checkpoint["target_noise"] = gather_from_ranks(self.noise_generator.get_state)
        checkpoint["act_noise"] = gather_from_ranks(self.act_generator.get_state)
        checkpoint["exploration_noise"] = self.exploration_noise and self.exploration_noise.plain()
        checkpoint["observation_parts"] = self.observation_parts
        checkpoint |= {"counted_datasets": self.counted_datasets, "reported_flags": list(self.evaluation.flags)}
        if "callbacks" in checkpoint:  # not if only weights are saved
            checkpoint["callbacks"] = to_primitives(checkpoint["callbacks"], "callbacks")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the checkpoint, and restore the clocks, the exploration noise and this process's noise generators.

        A run that continues trains the trained weights, not the averaged or copied ones that `state_dict` contains.
        `WeightAveraging` restores the averaged and the trained weights itself.
        """
        self.check_checkpoint(checkpoint)
        try:
            trainer: Any = self.trainer
        except RuntimeError:  # Lightning raises it for a module without a Trainer
            trainer = None
        if trainer is not None:
            folder = str(Path(str(trainer.ckpt_path)).parent)
            contain_paths(checkpoint.get("callbacks", {}), trainer.callbacks, folder)
        if trainer is not None and trainer.state.fn == "fit":
            state, trained = checkpoint["state_dict"], checkpoint.get("trained_policy", {})
            checkpoint["deployed_policy"] = {name: state[name] for name in trained}
            checkpoint["state_dict"] = {**state, **trained}
            if "current_model_state" in checkpoint and not any(
                isinstance(callback, WeightAveraging) for callback in trainer.callbacks
            ):
                checkpoint["state_dict"] = checkpoint["current_model_state"]
        for name in CLOCKS:
            setattr(self, name, checkpoint["clocks"][name])
        self.is_copied = "trained_policy" in checkpoint and "deployed_policy" not in checkpoint
        stored = checkpoint.get("exploration_noise")
        self.exploration_noise = from_config(Schedule, stored)  # type: ignore[type-abstract]
        self.observation_parts = self.observation_parts or checkpoint.get("observation_parts")
        self.counted_datasets = checkpoint.get("counted_datasets")
        self.evaluation.flags = list(checkpoint.get("reported_flags", []))
        for generator, name in ((self.noise_generator, "target_noise"), (self.act_generator, "act_noise")):
            if (state := select_rank(checkpoint.get(name, []))) is not None:  # saved by this number of processes
                generator.set_state(state.cpu())

    def check_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise `UsageError` for the checkpoint of an agent with other action bounds."""
        held = checkpoint["hyper_parameters"]
        for name in ("action_low", "action_high"):
            own = list(getattr(self.settings, name))
            if list(held[name]) != own:
                raise UsageError(
                    f"{name} must be {shown(held[name])}, as in the checkpoint, got {shown(own)}. Use the environment "
                    "in which the checkpoint was trained."
                )
