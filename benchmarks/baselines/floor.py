"""The matrix products of an update and nothing else, in float32 or bfloat16: no environment and no replay buffer."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.clock import stopwatch
from benchmarks.workloads import WARMUP_STEPS, Workload

LinearKernel = tuple[Tensor, Tensor, Tensor]  # out, left, right


def train(workload: Workload, flags: list[str]) -> None:
    """Multiply without end."""
    env = workload.make_env()
    obs_dim, action_dim = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    dtype = torch.bfloat16 if "bf16" in flags else torch.float32
    critic, actor = (obs_dim + action_dim, *workload.hidden_dims, 1), (obs_dim, *workload.hidden_dims, action_dim)
    always = [*forward(actor, workload.batch_size, dtype)]
    for _ in range(2):
        always += forward(critic, workload.batch_size, dtype)  # targets
        always += forward(critic, workload.batch_size, dtype)
        always += backward_weights(critic, workload.batch_size, dtype)
        always += backward_inputs(critic[1:], workload.batch_size, dtype)
    delayed = [*forward(actor, workload.batch_size, dtype), *forward(critic, workload.batch_size, dtype)]
    delayed += backward_inputs(critic, workload.batch_size, dtype)  # back to the action
    delayed += backward_weights(actor, workload.batch_size, dtype)
    delayed += backward_inputs(actor[1:], workload.batch_size, dtype)
    updates = 0
    stopwatch().watch(lambda: updates, None)
    for _ in range(WARMUP_STEPS):
        stopwatch().tick()
    with torch.inference_mode():
        while True:
            stopwatch().tick()
            updates += 1
            for out, left, right in always + delayed if updates % workload.policy_freq == 0 else always:
                torch.mm(left, right, out=out)


def forward(widths: tuple[int, ...], batch: int, dtype: torch.dtype) -> Iterator[LinearKernel]:
    """Yield (batch, fan_in) times (fan_in, fan_out) for each layer."""
    for fan_in, fan_out in pairwise(widths):
        yield product(batch, fan_in, fan_out, dtype)


def backward_weights(widths: tuple[int, ...], batch: int, dtype: torch.dtype) -> Iterator[LinearKernel]:
    """Yield (fan_in, batch) times (batch, fan_out) for each layer, the left one transposed as in backpropagation."""
    for fan_in, fan_out in pairwise(widths):
        out, _, right = product(fan_in, batch, fan_out, dtype)
        yield out, torch.randn(batch, fan_in).to(dtype).T, right


def backward_inputs(widths: tuple[int, ...], batch: int, dtype: torch.dtype) -> Iterator[LinearKernel]:
    """Yield (batch, fan_out) times (fan_out, fan_in) for each layer, the right one transposed."""
    for fan_in, fan_out in pairwise(widths):
        out, left, _ = product(batch, fan_out, fan_in, dtype)
        yield out, left, torch.randn(fan_in, fan_out).to(dtype).T


def product(rows: int, inner: int, columns: int, dtype: torch.dtype) -> LinearKernel:
    """Allocate the operands and the output of one product."""
    shapes = (rows, columns), (rows, inner), (inner, columns)
    out, left, right = (torch.randn(shape).to(dtype) for shape in shapes)
    return out, left, right
