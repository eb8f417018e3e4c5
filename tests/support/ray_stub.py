"""A stand-in for the package `ray`: actors that are threads of this process."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType, SimpleNamespace
from typing import Any


class RayError(Exception):
    """Base of Ray's errors."""


class RayTaskError(RayError):
    """An actor has raised an exception."""


class RayActorError(RayError):
    """The process of an actor has ended."""


class Method:
    """A method of an actor."""

    def __init__(self, actor: "Actor", name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *args: Any) -> "Future[Any]":
        return self._actor.threads.submit(getattr(self._actor.instance, self._name), *args)


class Actor:
    """An actor whose methods are called in threads."""

    def __init__(self, kind: type, options: dict[str, Any]) -> None:
        self.instance, self.options, self.is_killed = kind(), options, False
        self.threads = ThreadPoolExecutor(options["max_concurrency"])

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


class RayStub(ModuleType):
    """The functions of `ray` that a sweep calls.

    Attributes:
        actors: All actors, the oldest first.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.actors: list[Actor] = []
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: None)

    def init(self, address: str, **options: Any) -> None:
        """Connect."""

    def shutdown(self) -> None:
        """Disconnect."""

    def remote(self, **options: Any) -> Callable[[type], Any]:
        def create(kind: type) -> Actor:
            self.actors.append(Actor(kind, options))
            return self.actors[-1]

        return lambda kind: SimpleNamespace(remote=lambda: create(kind))

    def wait(self, references: Sequence["Future[Any]"], timeout: float) -> tuple[list[Any], list[Any]]:
        done = wait(references, timeout=timeout)
        return list(done.done), list(done.not_done)

    def get(self, reference: "Future[Any]") -> Any:
        """Return a result. A process that was killed takes its actor with it, as on a node."""
        if reference.result() == -9:
            raise RayActorError("The actor died unexpectedly before finishing this task.")
        return reference.result()

    def kill(self, actor: Actor) -> None:
        actor.is_killed = True
