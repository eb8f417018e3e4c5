"""Copy of the replay rows on the learner's GPU, so that batches are gathered there (experimental)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError
from td3_lightning.replay.buffer import Batch, Replay, SampledIndices, sent


class DeviceReplay:
    """A replay's batches, from a copy of its rows on another device.

    Args:
        replay: The replay, which keeps what is saved.
        device: Where the learner is.
    """

    def __init__(self, replay: Replay, device: torch.device) -> None:
        self.replay, self.device = replay, device
        self._rows: Tensor | None = None
        self._sent = [0 for _ in replay.rings]  # rows of each ring below this number are there as they will stay

    def __len__(self) -> int:
        return len(self.replay)

    def sample(self) -> Batch:
        """The batch that `replay.sample` would have given; raises `UsageError` if the device has no memory for rows."""
        (places, outcomes), new = self.replay.sample_indices(), self._new_rows()
        if self._rows is None:
            self._rows, new = self._whole(), new[:0]
        given = [places.int().view(torch.float32), outcomes]
        given += [torch.from_numpy(new).int().view(torch.float32), self.replay.rows[new]]
        parts = _sent_together(given, self.device)
        self._rows[parts[2].view(torch.int32).long()] = parts[3]
        return self.replay.read(self._rows, SampledIndices(parts[0].view(torch.int32).long(), parts[1]))

    def _new_rows(self) -> NDArray[np.int64]:
        """Where the rows stand that have changed since they were sent."""
        found = []
        for index, ring in enumerate(self.replay.rings):
            numbers = np.arange(self._sent[index], ring.valid_rows.stop)
            self._sent[index] = ring.immutable_rows
            slots = numbers % ring.length
            again = slots[slots < ring.n_step] + ring.length  # the first rows stand again behind the seam
            found.append(np.concatenate([slots, again]) + index * len(ring.rows))
        return np.concatenate(found)

    def _whole(self) -> Tensor:
        try:
            return self.replay.rows.to(self.device, copy=True)
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"The replay's rows take {self.replay.rows.nbytes / 1e9:.1f} GB, which {self.device} does not have; "
                "lower data.capacity, or leave data.on_device out."
            ) from error


def _sent_together(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of float32 on another device, in one piece, which nothing waits for."""
    whole = sent(torch.cat([tensor.flatten() for tensor in tensors]), device)
    parts = torch.split(whole, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
