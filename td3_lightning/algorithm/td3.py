"""TD3 (Fujimoto, van Hoof and Meger, 2018, https://arxiv.org/abs/1802.09477) as a LightningModule."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast, get_args

import lightning as L
import numpy as np
import torch
import yaml
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor, nn
from torchmetrics import CatMetric, Metric

from td3_lightning.algorithm.distributed import (
    average_gradients,
    broadcast_from_rank_zero,
    disable_ddp_grad_sync,
    gather_from_ranks,
    select_rank,
)
from td3_lightning.algorithm.encoders import Encoder, as_encoder, build
from td3_lightning.algorithm.networks import Actor, Critics
from td3_lightning.envs.episode import Episode
from td3_lightning.errors import (
    UsageError,
    refuse,
    require_bool,
    require_choice,
    require_float,
    require_floats,
    require_int,
    require_ints,
)
from td3_lightning.fast.adam import FLUSH_INTERVAL, flush_denormals
from td3_lightning.fast.eligibility import overrides
from td3_lightning.fast.manual_update import ManualUpdate
from td3_lightning.fast.single_action import SingleObservationPolicy
from td3_lightning.replay.buffer import Batch
from td3_lightning.schedules import Constant, Schedule, as_schedule, check_schedule
from td3_lightning.seeding import new_generator
from td3_lightning.serialization.checkpoint_file import FORMAT, read_checkpoint
from td3_lightning.serialization.primitives import to_primitives
from td3_lightning.serialization.restoration import check_restoration, stored_arguments
from td3_lightning.training.divergence import check_weights

Gradients = Literal["manual", "autograd", "compiled"]


CLOCKS = ("env_steps", "updates", "episodes")


LOSS_METHODS = {"target", "smooth_target_action", "add_target_noise", "draw_noise", "critic_loss", "actor_loss"}


FREQUENTLY_SET = (*CLOCKS, "_current_fx_name")  # attributes that are set all the time


Agent = TypeVar("Agent", bound="TD3")


class TD3(L.LightningModule):
    """Twin Delayed DDPG: the actor, N critics, their targets and the update.

    Args:
        obs_dim: Numbers in an observation; taken from the environment.
        action_low: Lower end of every action; taken from the environment.
        action_high: Upper end of every action; taken from the environment.
        hidden_dims: Width of each hidden layer of the actor and of every critic.
        num_critics: Q-functions, whose minimum is the target; the paper's twins are 2.
        layer_norm: Normalise each hidden layer before its ReLU.
        encoder: A network before these layers, shared by actor and critics, or one for each; None for none.
        actor_lr: Adam's step size for the actor, a number or a schedule over env_steps.
        critic_lr: Adam's step size for the critics, a number or a schedule over env_steps.
        tau: Share of the online weights in each Polyak average, in (0, 1].
        policy_noise: Standard deviation of the target policy's noise, in half-widths of the action box.
        noise_clip: Bound of that noise, in half-widths of the action box.
        policy_freq: Critic updates for one update of the actor and the targets.
        max_grad_norm: Largest norm of the actor's and of the critics' gradient; None leaves them.
        gradients: "manual" works them out faster where it can (plain networks, one process, a CPU); or "autograd"; or
            "compiled", which hands the losses to torch.compile, with CUDA graphs on a GPU. All but "autograd" act on
            one observation faster too, where the actor is plain: on the host, wherever it learns.

    Raises:
        UsageError: A setting is out of its range, which the sentence gives.
    """

    def __init__(
        self,
        obs_dim: int,
        action_low: list[float],
        action_high: list[float],
        hidden_dims: Sequence[int] = (256, 256),
        num_critics: int = 2,
        layer_norm: bool = False,
        encoder: Encoder | None = None,
        actor_lr: float | Schedule = 3e-4,
        critic_lr: float | Schedule = 3e-4,
        tau: float = 0.005,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_freq: int = 2,
        max_grad_norm: float | None = None,
        gradients: Gradients = "manual",
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.actor_lr, self.critic_lr = as_schedule(actor_lr, "actor_lr"), as_schedule(critic_lr, "critic_lr")
        check_schedule("actor_lr", self.actor_lr)
        check_schedule("critic_lr", self.critic_lr)
        encoder = as_encoder(encoder)
        self.shares_encoder = encoder is not None and encoder.shared
        # Lightning compares the arguments with the settings, which arrays are not made for.
        self.obs_dim = obs_dim = require_int("obs_dim", obs_dim, least=1)
        action_low, action_high = require_floats("action_low", action_low), require_floats("action_high", action_high)
        hidden_dims = require_ints("hidden_dims", hidden_dims, 1)
        num_critics = require_int("num_critics", num_critics, least=1)
        layer_norm = require_bool("layer_norm", layer_norm)
        self.tau = require_float("tau", tau, above=0, most=1, fix="The paper uses 0.005.")
        self.policy_noise = require_float("policy_noise", policy_noise, least=0, fix="The paper uses 0.2.")
        self.noise_clip = require_float("noise_clip", noise_clip, least=0, fix="The paper uses 0.5.")
        self.policy_freq = require_int("policy_freq", policy_freq, least=1, fix="The paper uses 2.")
        self.max_grad_norm = None if max_grad_norm is None else _norm(max_grad_norm)
        self.gradients = cast(Gradients, require_choice("gradients", gradients, get_args(Gradients)))
        settings = {
            "obs_dim": obs_dim,
            "action_low": action_low,
            "action_high": action_high,
            "hidden_dims": hidden_dims,
            "num_critics": num_critics,
            "layer_norm": layer_norm,
            "encoder": None if encoder is None else encoder.plain(),
            "actor_lr": self.actor_lr.plain(),
            "critic_lr": self.critic_lr.plain(),
            "tau": self.tau,
            "policy_noise": self.policy_noise,
            "noise_clip": self.noise_clip,
            "policy_freq": self.policy_freq,
            "max_grad_norm": self.max_grad_norm,
            "gradients": self.gradients,
        }
        self.save_hyperparameters(to_primitives(settings, "model"))

        shared = build(encoder, obs_dim)
        own = nn.Identity() if self.shares_encoder else build(encoder, obs_dim)
        features = _features(shared, obs_dim)
        self.actor = Actor(features, action_low, action_high, hidden_dims, layer_norm, own)
        self.critics = Critics(features, len(action_low), hidden_dims, num_critics, layer_norm, shared)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critics_target = copy.deepcopy(self.critics).requires_grad_(False)

        low, high = np.array(action_low, np.float64), np.array(action_high, np.float64)
        self.action_box = _rounded_up(low), -_rounded_up(-high)  # (action_dim,) each
        self.env_steps = 0  # steps taken in the training environments; the Collector's to count
        self.episodes = 0  # training episodes finished; the Collector's to count
        self.updates = 0  # critic updates
        self.noise_generator = new_generator("target noise")
        self.evaluation: dict[str, Metric] = {}  # one for each number that an episode reports
        self._by_hand: ManualUpdate | None = None
        self._single_actions: SingleObservationPolicy | None = None
        self._compiled: dict[str, Callable[[Batch], Any]] = {}
        self._drawn: Tensor | None = None  # noise for a compiled loss, while that is worked out
        self._noise: Tensor | None = None  # the memory for it

    def __setattr__(self, name: str, value: Any) -> None:
        """Spares what changes all the time torch's search for weights: Lightning notes 25 hooks in every update."""
        if name in FREQUENTLY_SET:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves what is made anew when it is needed out of a copy or a pickle."""
        anew: dict[str, Any] = {"_compiled": {}, **dict.fromkeys(("_by_hand", "_single_actions", "_drawn", "_noise"))}
        return {**super().__getstate__(), **anew}

    def setup(self, stage: str) -> None:
        """Takes the precision's type before Lightning loads weights, and not after it, when doubles were rounded."""
        self.trainer.precision_plugin.convert_module(self)

    # The update.

    def on_fit_start(self) -> None:
        """Forgets the networks of an earlier fit, for which there may be others now."""
        self._by_hand = self._single_actions = self._noise = None
        self._compiled.clear()
        self._check_precision()

    def _check_precision(self) -> None:
        """Raises `UsageError` where weights would stand still, gradients be untrue ones, or float64 is missing."""
        if self.trainer.strategy.root_device.type == "mps":
            raise UsageError(
                "Evaluations and clocks are of float64, which mps does not have; take the accelerator cpu."
            )
        if self.trainer.precision == "16-true":
            raise UsageError(
                "Adam's steps and its 1e-8 are too small for weights in float16, but precision 16-true came; use "
                "bf16-mixed or 32-true."
            )
        if self.trainer.precision == "bf16-true":
            rank_zero_warn(
                "With precision bf16-true weights have 8 significant bits, in which most steps of Adam and of Polyak "
                "averages round to nothing; bf16-mixed learns."
            )
        if self.max_grad_norm is not None and self.trainer.precision == "16-mixed":
            raise UsageError(
                "max_grad_norm is for true gradients, but precision 16-mixed came, which multiplies them; use "
                "bf16-mixed, or leave max_grad_norm out."
            )

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Takes the averaging of several processes' gradients upon itself."""
        disable_ddp_grad_sync(self.trainer.strategy.model)

    def target(self, batch: Batch) -> Tensor:
        """What the critics learn, (batch,): reward + discount * the least target Q at the smoothed target action."""
        features = self.critics_target.encoder(batch.next_obs)
        next_action = self.smooth_target_action(self.actor_target(self._actor_input(batch.next_obs, features)))
        next_q: Tensor = self.critics_target(features, next_action).amin(dim=0)
        return batch.reward + batch.discount * next_q

    def smooth_target_action(self, action: Tensor) -> Tensor:
        """Actions (batch, action_dim) with clipped noise, within the box."""
        return self.add_target_noise(action, self.draw_noise(action) if self._drawn is None else self._drawn)

    def add_target_noise(self, action: Tensor, noise: Tensor) -> Tensor:
        """The same with given noise (batch, action_dim), in half-widths of the box."""
        centre, scale = self.actor_target.centre, self.actor_target.scale
        return (noise * scale).add_(action).clamp_(centre - scale, centre + scale)

    def draw_noise(self, action: Tensor) -> Tensor:
        """Clipped noise for actions (batch, action_dim), in half-widths of the box."""
        drawn = torch.randn(action.shape, generator=self.noise_generator)  # on the host, so the same everywhere
        scale = self.actor_target.scale
        if scale.is_cuda:
            drawn = drawn.pin_memory()  # so that the host need not wait
        drawn = drawn.to(scale, non_blocking=True)
        return drawn.mul_(self.policy_noise).clamp_(-self.noise_clip, self.noise_clip)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum over critics of their mean squared error, and their Q-values (N, batch)."""
        with torch.no_grad():
            target = self.target(batch)
        q = self.critics(self.critics.encoder(batch.obs), batch.action)
        return (q - target).square().mean(dim=1).sum(), q

    def actor_loss(self, batch: Batch) -> Tensor:
        """Minus the mean value that the first critic gives the actor's actions."""
        with torch.no_grad():  # the critics alone train their encoder
            features = self.critics.encoder(batch.obs)
        return -self.critics.first(features, self.actor(self._actor_input(batch.obs, features))).mean()

    def _actor_input(self, obs: Tensor, features: Tensor) -> Tensor:
        """What the actor is asked about: the critics' features of an observation, if it shares their encoder."""
        return features if self.shares_encoder else obs

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """One update: critics; every `policy_freq` updates the actor and the targets too."""
        actor_optimizer, critic_optimizer = cast(list[LightningOptimizer], self.optimizers())
        self.updates += 1
        critic_loss, q = self._differentiate_critics(batch)
        self._gradient_step(critic_optimizer, self.critic_lr)
        logs = {"critic_loss": critic_loss, "q_mean": q.mean()}
        if self.updates % self.policy_freq == 0:
            logs["actor_loss"] = self._differentiate_actor(batch)
            self._gradient_step(actor_optimizer, self.actor_lr)
            self.update_targets()
        if self.updates % FLUSH_INTERVAL == 0:
            flush_denormals(actor_optimizer)
            flush_denormals(critic_optimizer)
        return logs

    def _differentiate_critics(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gives the critics their gradients; returns `critic_loss`."""
        if by_hand := self._by_hand_for(batch):
            return by_hand.of_critics(batch)
        if self.gradients == "compiled":
            self._draw_beforehand(batch.action)
        try:
            loss, q = self._loss("critic_loss")(batch)
        finally:
            self._drawn = None
        self._backward(loss, self.critics)
        return loss.detach().clone(), q.detach()  # a CUDA graph writes over what it gave before

    def _differentiate_actor(self, batch: Batch) -> Tensor:
        """Gives the actor its gradients, after the critics had theirs; returns `actor_loss`."""
        if self._by_hand is not None:
            return self._by_hand.of_actor(batch)
        with _frozen(self.critics) if self.gradients == "compiled" else nullcontext():
            loss: Tensor = self._loss("actor_loss")(batch)
        self._backward(loss, self.actor)
        return loss.detach().clone()

    def _draw_beforehand(self, action: Tensor) -> None:
        """Draws the noise for a compiled loss, which a generator would cut into pieces."""
        drawn = self.draw_noise(action)
        if self._noise is None or (self._noise.shape, self._noise.device) != (drawn.shape, drawn.device):
            self._noise = torch.empty_like(drawn)
        self._drawn = self._noise.copy_(drawn)  # a CUDA graph looks for it where it was

    def _loss(self, name: str) -> Callable[[Batch], Any]:
        """`critic_loss` or `actor_loss`, compiled if that is wanted."""
        loss: Callable[[Batch], Any] = getattr(self, name)
        if self.gradients != "compiled":
            return loss
        if name not in self._compiled:
            graphs = self.device.type == "cuda"
            self._compiled[name] = torch.compile(loss, mode="reduce-overhead" if graphs else None)
        return self._compiled[name]

    def _backward(self, loss: Tensor, network: nn.Module) -> None:
        """Gives the network its gradients, and no other one."""
        network.zero_grad()
        self.manual_backward(loss, inputs=[weight for weight in network.parameters() if weight.requires_grad])

    def _by_hand_for(self, batch: Batch) -> ManualUpdate | None:
        """What writes the gradients by hand, if that is wanted and suits."""
        if self._by_hand is None or not self._by_hand.fits(batch):
            wanted = self.gradients == "manual" and ManualUpdate.suits(self, batch)
            self._by_hand = ManualUpdate(self, len(batch.reward)) if wanted and self._losses_are_ours() else None
        return self._by_hand

    def _losses_are_ours(self) -> bool:
        """Whether no subclass has a target or a loss of its own, and neither has this one."""
        kinds = all(getattr(type(self), name) is getattr(TD3, name) for name in LOSS_METHODS)
        return kinds and not vars(self).keys() & LOSS_METHODS

    def _gradient_step(self, optimizer: LightningOptimizer, lr: Schedule) -> None:
        """One Adam step along the gradients."""
        groups = optimizer.param_groups
        if self._by_hand is None:  # which one process alone has
            average_gradients(weight for group in groups for weight in group["params"])
        rate = lr(self.env_steps)
        if not isinstance(lr, Constant):
            rate = broadcast_from_rank_zero(rate, self.device)
        for group in groups:
            group["lr"] = rate
        if self.max_grad_norm is not None:
            self.clip_gradients(optimizer.optimizer, gradient_clip_val=self.max_grad_norm)
        if self._by_hand is not None:
            self._by_hand.step(optimizer)
        else:
            optimizer.step()
        if self.gradients == "compiled":
            optimizer.zero_grad()  # they are a CUDA graph's, which takes their memory back

    @torch.no_grad()
    def update_targets(self) -> None:
        """target <- (1 - tau) target + tau online, for the actor and the critics."""
        if self._by_hand is not None:
            self._by_hand.move_targets(self.tau)
            return
        for online, target in ((self.critics, self.critics_target), (self.actor, self.actor_target)):
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), self.tau)

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        """Adam for the actor and Adam for the critics; `actor_lr` and `critic_lr` hold for others too."""
        fused = True if self.max_grad_norm is None else None  # Lightning clips no gradients for a fused Adam
        return (
            torch.optim.Adam(self.actor.parameters(), lr=self.actor_lr(self.env_steps), fused=fused),
            torch.optim.Adam(self.critics.parameters(), lr=self.critic_lr(self.env_steps), fused=fused),
        )

    # The policy.

    def act(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Compute greedy actions for observations, without noise.

        Args:
            obs: One observation (obs_dim,) or several (n, obs_dim).

        Returns:
            One action (action_dim,) or several (n, action_dim), in the environment's units.

        Raises:
            UsageError: The observations have another shape.
        """
        obs = _as_rows(obs, self.obs_dim)
        act = self._single_actions_for(obs)
        action = act(obs.reshape(-1)).reshape(*obs.shape[:-1], -1) if act else self._actions(obs)
        low, high = self.action_box
        # The tanh's end, centre + scale, may round to just outside the box.
        clipped: NDArray[np.float32] = np.minimum(np.maximum(action, low), high)
        return clipped

    def forward(self, obs: Tensor) -> Tensor:
        """Greedy actions (batch, action_dim) for observations (batch, obs_dim), as an export of the policy wants them.

        They are not rounded into the box, as `act` does.
        """
        action: Tensor = self.actor(self.critics.encoder(obs) if self.shares_encoder else obs)
        return action

    @torch.inference_mode()
    def _actions(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        seen = torch.from_numpy(np.ascontiguousarray(obs)).to(self.actor.scale)
        actions: NDArray[np.float32] = self.forward(seen).float().cpu().numpy()
        return actions

    def _single_actions_for(self, obs: NDArray[Any]) -> SingleObservationPolicy | None:
        """What acts on a single observation faster, if that is wanted and suits."""
        if obs.size != self.obs_dim:
            return None
        actor: Any = self._modules["actor"]  # four times as fast as self.actor
        if self._single_actions is None or not self._single_actions.fits(actor):
            wanted = self.gradients != "autograd" and not self.shares_encoder
            suits = wanted and SingleObservationPolicy.suits(actor, self._actor_updates)
            self._single_actions = SingleObservationPolicy(actor, self._actor_updates) if suits else None
        return self._single_actions

    def _actor_updates(self) -> int | None:
        """How often the actor has been updated; None where no Trainer runs `training_step`, or it is another one."""
        counted = self._trainer is not None and self.trainer.state.status is TrainerStatus.RUNNING
        return self.updates // self.policy_freq if counted and not overrides(self, TD3, "training_step") else None

    # Evaluation: one step is one episode.

    def on_validation_epoch_start(self) -> None:
        """Begins an evaluation; one that was stopped in its middle leaves nothing."""
        self.evaluation.clear()
        self._single_actions = None  # other weights may have been put in for it, in a way that no copy notices

    def validation_step(self, episode: Episode, batch_idx: int) -> dict[str, float]:
        """Plays an episode without noise; every number that it reports is kept, and given to the callbacks."""
        report = episode.play(self.act)
        for name, value in report.items():
            if name not in self.evaluation:
                self.evaluation[name] = CatMetric(nan_strategy="disable").to(self.device).set_dtype(torch.float64)
            self.evaluation[name].update(value)
        return report

    def on_validation_epoch_end(self) -> None:
        """Logs the mean of every number, and for the return its spread, against `env_steps`."""
        self._single_actions = None  # and out again
        stage = "test" if self.trainer.testing else "eval"
        logs = {}
        for name, metric in self.evaluation.items():
            values = metric.compute().double().reshape(-1)
            logs[f"{stage}/{name}_mean" if name in ("return", "length") else f"{stage}/{name}"] = values.mean()
            if name == "return":
                logs[f"{stage}/return_std"] = values.std(correction=0)
                logs[f"{stage}/return_min"], logs[f"{stage}/return_max"] = values.min(), values.max()
        # In float64, which counts exactly; "step" is the loggers' axis.
        clocks = {name: getattr(self, name) for name in CLOCKS} | {"step": self.env_steps}
        self.log_dict(logs | {name: torch.tensor(count, dtype=torch.float64) for name, count in clocks.items()})

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # State.

    @classmethod
    def load_from_checkpoint(
        cls: type[Agent],
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Agent:
        """Load an agent from a checkpoint, which may come from anybody: it cannot run code or import modules.

        Args:
            checkpoint_path: A local file, or a file opened for reading.
            map_location: Device for the agent, such as "cuda"; None is the CPU.
            hparams_file: YAML file with settings that win over the checkpoint's.
            strict: Whether the weights must have the agent's names; None is the class's `strict_loading`.
            weights_only: Not used, as it is always true.
            **kwargs: Settings that win over both.

        Raises:
            UsageError: The checkpoint is damaged, malformed, or of another agent.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        given = {**_from_file(hparams_file), **kwargs}
        module = cls(**{**stored_arguments(cls, checkpoint, checkpoint_path, given), **given})
        if strict is not None:
            module.strict_loading = strict
        check_restoration(checkpoint, module, module.strict_loading)  # a subclass may have hooks of its own
        module.on_load_checkpoint(checkpoint)
        module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
        return module if map_location is None else module.to(map_location)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the format, the clocks and the noise; raises `LearnerError` rather than save what has diverged."""
        check_weights(self, self.updates, *self.trainer.optimizers)
        checkpoint["format"] = FORMAT
        checkpoint["clocks"] = {name: getattr(self, name) for name in CLOCKS}
        checkpoint["target_noise"] = gather_from_ranks(self.noise_generator.get_state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the checkpoint, and restore the clocks and the noise.

        Where a run goes on without a mean of the weights, it takes the weights that were trained, not their mean.
        """
        check_restoration(checkpoint, self, self.strict_loading)
        if "current_model_state" in checkpoint and self._trains_without_mean():
            checkpoint["state_dict"] = checkpoint["current_model_state"]
        for name, value in checkpoint["clocks"].items():
            setattr(self, name, value)
        states = checkpoint["target_noise"]  # one alone in checkpoints from before there were ranks
        noise = select_rank(states if isinstance(states, list) else [states])
        if noise is not None:  # there were as many ranks
            self.noise_generator.set_state(noise.cpu())

    def _trains_without_mean(self) -> bool:
        """Whether a Trainer is about to train it, and none of its callbacks keeps a running mean of the weights."""
        if self._trainer is None or self.trainer.state.fn != "fit":
            return False
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return not any(isinstance(each, WeightAveraging) for each in callbacks)


# Lightning asks for its arguments in every step, and looks them up for longer than a small network takes.
TD3.training_step.__signature__ = inspect.signature(TD3.training_step)  # type: ignore[attr-defined]


def _as_rows(obs: Any, obs_dim: int) -> NDArray[Any]:
    """Return observations as an array (obs_dim,) or (n, obs_dim), or raise `UsageError`."""
    wanted = f"numbers of shape ({obs_dim},) or (n, {obs_dim})"
    try:
        rows = np.asarray(obs)
    except Exception as error:  # a ragged list, a tensor on a GPU
        raise refuse("obs", wanted, obs, "Use a NumPy array with one row per observation.") from error
    if not 1 <= rows.ndim <= 2 or rows.shape[-1] != obs_dim or rows.dtype.kind not in "biuf":
        got = f"shape {rows.shape} of {rows.dtype}"
        raise UsageError(f"obs must be {wanted}, got {got}. Use a NumPy array with one row per observation.")
    return rows


def _norm(max_grad_norm: float) -> float:
    return require_float("max_grad_norm", max_grad_norm, above=0, fix="Omit max_grad_norm for no clipping.")


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Keeps a loss that is compiled from having gradients worked out that nobody asks for."""
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _from_file(path: str | Path | None) -> dict[str, Any]:
    """Read settings from a YAML file of the user's."""
    return {} if path is None else dict(yaml.safe_load(Path(path).read_text()) or {})


def _features(encoder: nn.Module, obs_dim: int) -> int:
    """How many features an encoder makes."""
    with torch.no_grad():
        return int(encoder(torch.zeros(2, obs_dim)).shape[-1])


def _rounded_up(bound: NDArray[np.float64]) -> NDArray[np.float32]:
    """The least float32 that is not below each number."""
    nearest = bound.astype(np.float32)
    return np.where(nearest < bound, np.nextafter(nearest, np.float32(np.inf)), nearest)
