"""Wrapper of each environment: the check of its results, once per step, and the record that restores an episode."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from td3_lightning.envs.global_generators import changed, generator_states, set_generators
from td3_lightning.envs.reports import scalar_info
from td3_lightning.errors import EnvError, as_float, described, is_ours, shown

# float64, because comparison with float16 would round a Python float.
MAX_FLOAT32 = np.float64(np.finfo(np.float32).max)
MAX_REWARD = float(MAX_FLOAT32)  # comparison of Python floats is faster
SAFE_SQUARES = 1e70  # a sum of squares below this holds no number above MAX_FLOAT32
MAX_SEED = 2**31  # some simulators take integers with 32 bits and a sign
OPENGL = ("opengl", "gladload", "framebuffer", "glfw", "osmesa", "mjr_", "eglerror", "eglquery")  # in MuJoCo's errors


class RestorableEnv(gym.Wrapper):
    """Check the results of an environment, and record its episodes so that another process can restore or compare them.

    Results must be finite and match the spaces. Simulators cannot be copied, but they are deterministic. Therefore the
    state consists of the seed of the episode and the actions since the reset. Each reset has a seed, because an
    environment may have random generators that cannot be read. The seeds follow from that of the first episode.

    The replay of the last complete episode shows whether episodes depend on earlier ones.

    Raises:
        EnvError: A result is invalid, or the environment raised an exception. The message names the environment, the
            step and the seed of the episode.
    """

    saved: dict[str, Any] | None = None  # the state that `restore` restores

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._shape = env.observation_space.shape
        is_float = np.issubdtype(env.observation_space.dtype, np.floating)
        self._kinds = "biuf" if is_float else "biu"  # workers would truncate floats in a space of integers
        self.name = name_of(env)  # first words of an error message
        self.seed: int | None = None  # seed of the running episode
        self.steps = 0  # steps in the running episode
        self.first_seed = 0  # seed of the last reset with a seed
        self.episodes = 0  # episodes since the first seed
        self._actions: Any = []
        self._return = 0.0
        self._previous: dict[str, Any] | None = None  # the last complete episode
        self.obs: NDArray[Any] = np.empty(0)  # the last observation
        self.info: dict[str, Any] = {}  # that of the last complete episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with a seed; without one, with the next seed that follows from the first. The info is empty."""
        if seed is not None:
            self.first_seed, self.episodes = seed, 0
        self.seed = seed if seed is not None else episode_seed(self.first_seed, self.episodes)
        self.episodes += 1
        self.steps, self._actions, self._return = 0, [], 0.0
        try:
            obs, _ = self.env.reset(seed=self.seed, options=options)
        except Exception as error:
            raise self._failure(error) from error
        self.obs = self._checked_obs(obs)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and record the action and the results. Only the last info has values: the report of the episode."""
        own_action = np.array(action)
        self._actions.append(own_action)
        self.steps += 1
        try:
            result, value, terminated, truncated, info = self.env.step(own_action.copy())
        except Exception as error:
            raise self._failure(error) from error
        obs, reward = self._checked_obs(result), self._checked_reward(value)
        terminated, truncated = bool(terminated), bool(truncated)
        self._return += reward
        if terminated or truncated:
            self.obs = np.array(obs)  # the environment may reuse its array in the next reset
            self.info, self._previous = info, self._episode()
            report = scalar_info(info) | {"return": self._return, "length": float(self.steps)}
            return self.obs, reward, terminated, truncated, report
        self.obs = obs
        return obs, reward, terminated, truncated, {}

    def episode_steps(self) -> int:
        """Return the number of steps in the running episode."""
        return self.steps

    def state(self) -> dict[str, Any]:
        """Return the running episode and the history as arrays and Python numbers."""
        running = {"first_seed": self.first_seed, "episodes": self.episodes, **self._episode()}
        return {**running, "actions": np.array(self._actions), "obs": np.array(self.obs), **self.history()}

    def history(self) -> dict[str, Any]:
        """Return the last complete episode, if there is one, and the states of the global random generators."""
        generators = {"generators": generator_states()}
        if self._previous is None:
            return generators
        return generators | {"previous": {**self._previous, "actions": np.array(self._previous["actions"])}}

    def _episode(self) -> dict[str, Any]:
        return {"seed": self.seed, "actions": self._actions, "obs": self.obs, "return": self._return}

    def restore(self) -> tuple[str, NDArray[Any]]:
        """Replay the episodes in `saved`.

        Returns:
            What is different, or an empty text if all results are bit-identical, and the last observation. After a
            difference, the environment starts a new episode.
        """
        state: Any = self.saved
        difference = self.difference(state)
        self.first_seed, self.episodes, self.saved = state["first_seed"], state["episodes"], None
        if difference:
            self.reset()
        return difference, np.array(self.obs)

    def difference(self, state: dict[str, Any]) -> str:
        """Replay the last complete episode and the running one, as far as a state has them.

        The global random generators get their saved states. A generator that the replay uses must reach that state.

        Args:
            state: A result of `state` or `history`.

        Returns:
            What is different, or an empty text if all results are bit-identical.
        """
        before, previous = generator_states(), state.get("previous")
        saved = state["generators"]
        episodes = [each for each in (previous, state) if each and "seed" in each]
        wrong = next((each for each in episodes if not self._repeats(each, each is previous)), None)
        after = generator_states()
        set_generators(saved)
        used = [name for name in changed(after, before) if name in changed(after, saved)]
        if used or wrong:
            self._previous = previous  # the next comparison finds the same
        if used:
            return f"{self.name} draws random numbers from the global generator of {used[0]}"
        cause = "has other arguments or versions, keeps state of earlier episodes, or draws from an unseeded generator"
        return f"{self.name} does not repeat its episode with seed {wrong['seed']}: it {cause}" if wrong else ""

    def _repeats(self, episode: dict[str, Any], is_complete: bool) -> bool:
        """Replay an episode. Return whether its length, its last observation and its return are bit-identical."""
        self.reset(seed=episode["seed"])
        ended = any(any(self.step(action)[2:4]) for action in episode["actions"])
        same = ended == is_complete and self.steps == len(episode["actions"]) and self._return == episode["return"]
        return bool(same and np.array_equal(self.obs, episode["obs"], equal_nan=True))

    def _checked_obs(self, obs: Any) -> NDArray[Any]:
        try:
            values = np.asarray(obs)
        except Exception as error:  # a ragged list, or a tensor on a GPU
            raise self._failure(error) from error
        kind = values.dtype.kind
        if values.shape != self._shape or kind not in self._kinds:
            got, space = f"shape {values.shape} and type {values.dtype}", self.observation_space
            raise self._fault(f"returned an observation of {got}, expected {space} from its observation_space,")
        if kind == "f" and not _is_small(values) and not np.abs(values).max() <= MAX_FLOAT32:
            first = int(np.argmin(np.abs(values.ravel()) <= MAX_FLOAT32))
            raise self._fault(f"returned an observation that is not finite, {values.flat[first]} at index {first},")
        # PyTorch has neither other byte orders, as in data from a network, nor long doubles.
        return values if values.dtype.isnative and values.dtype.char != "g" else values.astype(np.float64)

    def _checked_reward(self, value: Any) -> float:
        number = float(value) if type(value) in (float, np.float64) else as_float(value)
        if number is None:
            raise self._fault(f"returned a reward of {shown(value)}, expected one number,")
        if not -MAX_REWARD <= number <= MAX_REWARD:
            raise self._fault(f"returned a reward that is not finite, {number},")
        return number

    def _failure(self, error: Exception) -> Exception:
        """Return the error to raise for an exception of the environment."""
        return error if is_ours(error) else self._fault(f"raised {described(error)}", advice(error))

    def _fault(self, what: str, fix: str = "Correct the environment, or wrap it.") -> EnvError:
        where = f"step {self.steps} of" if self.steps else "the reset of"
        return EnvError(
            f"{self.name} {what} at {where} the episode with seed {self.seed}. This step is not stored. {fix}"
        )


def _is_small(values: NDArray[Any]) -> bool:
    """Return whether all numbers are finite and far below the bound. This is faster than the exact check."""
    flat = values.ravel()  # its method `dot` is faster than np.vdot
    return values.itemsize > 2 and float(flat.dot(flat)) < SAFE_SQUARES


def advice(error: Exception, otherwise: str = "Correct the environment, or wrap it.") -> str:
    """Return advice for an exception of an environment: for MuJoCo without a display, or `otherwise`."""
    if any(word in described(error).lower() for word in OPENGL):
        return "To render without a display, set the environment variable MUJOCO_GL=egl, or MUJOCO_GL=osmesa."
    return otherwise


def name_of(env: gym.Env) -> str:
    """Return the id of an environment, or the name of its class if it has no id."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else type(env.unwrapped).__name__


def episode_seed(first_seed: int, number: int) -> int:
    """Return the seed of a later episode, given that of the first one and the number of episodes before."""
    return int(np.random.SeedSequence([first_seed, number]).generate_state(1)[0]) % MAX_SEED
