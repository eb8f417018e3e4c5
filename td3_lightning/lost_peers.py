"""Recognizing the errors that gloo, NCCL and torch's key-value store raise when another process has ended."""

import re

# Texts of torch 2.10 to 2.13. gloo reports the system's errno in its own words or in the C library's.
GLOO = (
    *("Connection closed by peer", "Socket closed", "Socket unexpectedly closed", "Pair is not connected"),
    *("Read error", "Read timeout", "Write error", "Write timeout", "Connect timeout"),
    *("Application timeout caused pair closure", "Gloo connectFullMesh failed", r"transport/.*writev \["),
    "Timed out waiting .* for (?:recv|send|.*operation)",
)
SYSTEM = (
    *("Connection reset by peer", "Connection refused", "Connection timed out", "Connection aborted", "Broken pipe"),
    *("No route to host", "Host is down", "Network is unreachable", "Software caused connection abort"),
    "Transport endpoint is not connected",
)
STORE = (
    *("Connection was likely closed", "client socket has timed out", "Socket Timeout", "waitForInput: socket"),
    *("Timed out after .* waiting for clients", "wait timeout after"),
)
NCCL = (
    *("ncclRemoteError", "remote process exited", "unexpected exit of a remote peer", "communicator was aborted"),
    *("Connection closed by remote peer", "Watchdog caught collective operation timeout", "NCCL timeout"),
    *("Some NCCL operations have failed or timed out", "Net ?: .*(?:failed|closed)"),
    "NET/.*(?:peer|completed with error)",
)
_LOST = re.compile("|".join((*GLOO, *SYSTEM, *STORE, *NCCL)), re.IGNORECASE)


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of torch.distributed says that another process of this run has ended."""
    if type(error).__name__ in ("DistNetworkError", "DistStoreError"):  # torch may be built without them
        return True
    # OSError has the same words for a user's own connections.
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None
