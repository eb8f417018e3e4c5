"""Check the form of errors about settings: `<setting> must be <constraint>, got <value>. <fix>.`"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from td3_lightning import UsageError

MOST_CHARACTERS = 300
ADVICE = re.compile(
    r"\b(use|set|give|raise|lower|increase|reduce|add|remove|choose|take|make|let|leave|pass|import|install|resume|begin"
    r"|omit|usual|the paper|leaves)\b",  # a usual value counts as advice
    re.IGNORECASE,
)


def assert_one_sentence(error: BaseException, *, setting: str, value: str, fix: str | None = None) -> None:
    """Check that an error is one short line with the setting, the value and, after the value, a fix.

    Args:
        error: The error.
        setting: The name of the setting.
        value: The rejected value, as the message must print it.
        fix: Text that the fix must contain; None for any advice.
    """
    assert value, "an empty value is in every message"
    assert fix != "", "an empty fix is in every message"
    message = str(error)
    assert "\n" not in message, message
    assert message.endswith("."), message
    assert len(message) <= MOST_CHARACTERS, message
    assert "Traceback" not in message, message
    assert re.search(rf"\b{re.escape(setting)}\b", message), (setting, message)
    values = list(re.finditer(rf"(?<![\w.-]){re.escape(value)}(?!\w|\.\d)", message))
    assert values, (value, message)
    advice = message[values[0].end() :]
    assert ADVICE.search(advice) if fix is None else fix.lower() in advice.lower(), (fix, message)


@contextmanager
def refused(setting: str, value: str, fix: str | None = None) -> Iterator[None]:
    """Check that the block raises a `UsageError` of that form. See `assert_one_sentence` for the arguments."""
    with pytest.raises(UsageError) as caught:
        yield
    assert_one_sentence(caught.value, setting=setting, value=value, fix=fix)
