"""Copy of the replay rows on the learner's GPU, so that batches are gathered there (experimental)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from td3_lightning.errors import UsageError
from td3_lightning.replay.batch import Batch, SampledIndices, copy_to_device
from td3_lightning.replay.buffer import Replay


class DeviceReplay:
    """Sample the batches of a replay buffer from a copy of its rows on another device.

    Args:
        replay: The replay buffer, which checkpoints store.
        device: Device of the learner.
    """

    def __init__(self, replay: Replay, device: torch.device) -> None:
        self.replay, self.device = replay, device
        self._rows: Tensor | None = None
        self._copied = [0 for _ in replay.rings]  # rows of each ring below this number are final on the device

    def __len__(self) -> int:
        return len(self.replay)

    def sample(self) -> Batch:
        """Return the batch that `replay.sample` would return.

        Raises:
            UsageError: The device has too little memory for the rows.
        """
        (places, outcomes), new = self.replay.sample_indices(), self._new_rows()
        if self._rows is None:
            self._rows, new = self._copy_all_rows(), new[:0]
        packed = [places.int().view(torch.float32), outcomes]
        packed += [torch.from_numpy(new).int().view(torch.float32), self.replay.rows[new]]
        parts = _copy_together(packed, self.device)
        self._rows[parts[2].view(torch.int32).long()] = parts[3]
        return self.replay.gather(self._rows, SampledIndices(parts[0].view(torch.int32).long(), parts[1]))

    def _new_rows(self) -> NDArray[np.int64]:
        """Return the positions of the rows that have changed since they were copied."""
        positions = []
        for index, ring in enumerate(self.replay.rings):
            numbers = np.arange(max(self._copied[index], ring.valid_rows.start), ring.valid_rows.stop)
            self._copied[index] = ring.immutable_rows
            slots = numbers % ring.length
            repeated = slots[slots < ring.n_step] + ring.length  # the ring repeats its first rows at its end
            positions.append(np.concatenate([slots, repeated]) + index * len(ring.rows))
        return np.concatenate(positions)

    def _copy_all_rows(self) -> Tensor:
        try:
            return self.replay.rows.to(self.device, copy=True)
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"data.on_device requires {self.replay.rows.nbytes / 1e9:.1f} GB on {self.device} for the rows of the "
                "replay buffer, got less. Reduce data.capacity, or remove data.on_device."
            ) from error


def _copy_together(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """Copy float32 tensors to another device in one transfer without blocking."""
    packed = copy_to_device(torch.cat([tensor.flatten() for tensor in tensors]), device)
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
