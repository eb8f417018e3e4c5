"""The setting `data.vector_env`: where the vector environment comes from."""

import importlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from td3_lightning.envs.constructor_errors import explain_constructor_error
from td3_lightning.envs.gymnasium_vector import GymnasiumVector
from td3_lightning.envs.lifetime import must_pass
from td3_lightning.envs.make import EnvId, env_name
from td3_lightning.errors import UsageError, described, one_line, refuse, shown

VectorMaker = Callable[..., gym.vector.VectorEnv]


if TYPE_CHECKING:
    VectorName = str | VectorMaker
else:
    VectorName = str  # the command line and its configurations accept only names


MAKERS = {"envpool": "td3_lightning.envs.envpool:SeededEnvPool"}
FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # as in the entry points of packages
FIX = "Use gymnasium:make_vec, for example."
UNSUPPORTED = {  # settings, and what to use instead
    "env_workers": "Use 0, because the vector environment steps all environments.",
    "wrappers": "Use them in the function of data.vector_env and in the registered environment of data.env_id.",
    "pixels": "Omit it, and use an environment that observes numbers.",
}


@dataclass(frozen=True)
class VectorSource:
    """Make a vector environment by `maker(env_id, num_envs=num_envs, **settings)`.

    Args:
        maker: "envpool", "module:function", or a function.
        env_id: Id of the environment, or the function that makes it.
        settings: Keyword arguments of the maker.

    Raises:
        UsageError: The maker has another form.
    """

    maker: VectorName
    env_id: EnvId
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        is_name = isinstance(self.maker, str) and (self.maker in MAKERS or FORM.fullmatch(self.maker))
        if not is_name and not callable(self.maker):
            raise refuse("data.vector_env", "envpool or module:function", self.maker, FIX)

    def make(self, num_envs: int, timeout: float | None) -> GymnasiumVector:
        """Make the training environments.

        Args:
            num_envs: Number of environments.
            timeout: Time limit of a step or a reset in seconds. None means no limit.

        Raises:
            UsageError: The maker does not exist, does not accept its arguments, or does not return what is required.
            EnvError: The maker raised something else.
        """
        name, maker = f"{env_name(self.env_id)} of {env_name(self.maker)}", self._find()
        try:
            with _signals_for_workers():
                env = maker(self.env_id, num_envs=num_envs, **self.settings)
        except BaseException as error:  # a maker may call sys.exit
            if must_pass(error):
                raise
            if isinstance(error, gym.error.Error | ValueError | TypeError | AssertionError):
                arguments = f"{num_envs} environments and the arguments {shown(dict(self.settings))}"
                said = one_line(error).removesuffix(".")
                raise UsageError(
                    f"{name} cannot be made with {arguments} ({said}). Change data.vector_env, data.vector_kwargs or "
                    "data.env_kwargs."
                ) from error
            raise explain_constructor_error(maker, name, self.settings, error) from error
        return GymnasiumVector(env, num_envs, name, timeout)

    def _find(self) -> VectorMaker:
        """Import the maker."""
        if not isinstance(self.maker, str):
            return self.maker
        module, _, names = MAKERS.get(self.maker, self.maker).partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in names.split("."):
                found = getattr(found, name)
        except Exception as error:  # a module of the user may raise anything
            constraint = f"a function that can be imported ({described(error)})"
            raise refuse("data.vector_env", constraint, self.maker, FIX) from error
        if not callable(found):
            raise refuse("data.vector_env", "the name of a function", self.maker, FIX)
        return found  # type: ignore[no-any-return]


@contextmanager
def _signals_for_workers() -> Iterator[None]:
    """Let workers that a vector environment starts ignore the signals that stop a run, and end on SIGTERM.

    They inherit blocked signals and default handlers. This process receives a blocked signal afterwards.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield
        return
    stopping = {signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None:  # None is a handler that Python did not set
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def vector_source(
    vector_env: VectorName | None,
    env_id: EnvId,
    settings: Mapping[str, Any],
    vector_kwargs: Mapping[str, Any] | None,
    others: Mapping[str, Any],
) -> VectorSource | None:
    """Return the source of `data.vector_env`, or None without one.

    Args:
        vector_env: The setting.
        env_id: Id of the environment, or the function that makes it.
        settings: Keyword arguments of the environment.
        vector_kwargs: Additional keyword arguments of the maker, which override `settings`.
        others: Values of the settings in `UNSUPPORTED`.

    Raises:
        UsageError: The settings do not fit together.
    """
    if vector_env is None:
        if vector_kwargs:
            raise UsageError("data.vector_kwargs requires data.vector_env, got none. Add --data.vector_env.")
        return None
    for name, fix in UNSUPPORTED.items():
        if others[name]:
            raise UsageError(f"data.{name} must not be set with data.vector_env, got {shown(others[name])}. {fix}")
    return VectorSource(vector_env, env_id, {**settings, **(vector_kwargs or {})})
