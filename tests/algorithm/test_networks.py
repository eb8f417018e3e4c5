"""The actor and the critics against plain torch.nn layers, and the box of actions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from td3_lightning import TD3, TD7, Actor, Critics, UsageError
from td3_lightning.algorithm.ensemble import EnsembleLinear


def plain(linears: list[tuple[Tensor, Tensor]], norms: list[tuple[Tensor, Tensor]]) -> nn.Sequential:
    """torch.nn's own layers with the given weights (out, in), biases and normalisations."""
    layers: list[nn.Module] = []
    for index, (weight, bias) in enumerate(linears):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
        if index < len(linears) - 1:
            if norms:
                norm = nn.LayerNorm(len(norms[index][0]))
                norm.load_state_dict({"weight": norms[index][0], "bias": norms[index][1]})
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("hidden_dims", [(8,), (7, 5), (4, 4, 4)])
@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_critics_are_plain_networks_side_by_side(
    num_critics: int, hidden_dims: tuple[int, ...], layer_norm: bool
) -> None:
    critics = Critics(3, 2, hidden_dims, num_critics, layer_norm)
    for parameter in critics.parameters():  # LayerNorm begins at one and zero, which would hide a mistake
        parameter.data.normal_()
    obs, action = torch.randn(11, 3), torch.randn(11, 2)
    q = critics(obs, action)
    assert q.shape == (num_critics, 11)
    parameters = dict(critics.named_parameters())
    for one in range(num_critics):
        weights = [p[one] for name, p in parameters.items() if name.endswith("weight")]
        biases = [p[one, 0] for name, p in parameters.items() if name.endswith("bias")]
        pairs = list(zip(weights, biases, strict=True))
        linears = [(weight.T, bias) for weight, bias in pairs if weight.shape[0] > 1 or weight.shape[1] == 1]
        norms = [(weight[0], bias) for weight, bias in pairs if weight.shape[0] == 1 and weight.shape[1] > 1]
        expected = plain(linears, norms)(torch.cat([obs, action], 1)).squeeze(1)
        torch.testing.assert_close(q[one], expected, rtol=1e-5, atol=1e-5)
        if one == 0:
            torch.testing.assert_close(critics.q1(obs, action), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_product_per_critic_has_the_batched_gradients(layer_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    critics = Critics(3, 2, (7, 5), 3, layer_norm)
    for parameter in critics.parameters():
        parameter.data.normal_()
    obs, action, gradients = torch.randn(11, 3), torch.randn(11, 2), []
    for batched in (False, True):
        monkeypatch.setattr(Critics, "_is_batched", lambda self, inputs, batched=batched: batched)
        critics(obs, action).square().mean(dim=1).sum().backward()
        gradients.append([parameter.grad for parameter in critics.parameters()])
        critics.zero_grad()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


class Scaled(EnsembleLinear):
    """Layer of a user, which inherits `members`."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


def doubled(layer: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    return 2 * outputs


class Bounded(Critics):
    """Critics of a user, whose values are bounded."""

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return 0.1 * torch.tanh(super().forward(features, action))


CHANGES = [
    *("activation", "subclass", "hook", "forward"),
    *("subclass of Critics", "hook of Critics", "forward of Critics"),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("changed", CHANGES)
def test_actor_maximizes_the_critic_that_is_trained(
    changed: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers of critics may be a user's, on any number of threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    critics, plain_critics = (Critics(3, 2, (7,), 2) for _ in range(2))
    layer = critics.layers[0]
    if changed == "activation":
        critics.layers[1] = nn.ELU()
    elif changed == "subclass":
        critics.layers[0] = Scaled(2, 5, 7)
    elif changed == "hook":
        layer.register_forward_hook(doubled)
    elif changed == "forward":
        layer.forward = lambda inputs: 2 * EnsembleLinear.forward(layer, inputs)
    elif changed == "subclass of Critics":
        critics = Bounded(3, 2, (7,), 2)
    elif changed == "hook of Critics":
        critics.register_forward_hook(doubled)
    else:
        critics.forward = lambda features, action: 2 * Critics.forward(critics, features, action)  # type: ignore
    plain_critics.load_state_dict(critics.state_dict())
    features, action = torch.randn(11, 3), torch.randn(11, 2)
    q = critics(features, action)
    torch.testing.assert_close(critics.q1(features, action), q[0])
    assert not torch.allclose(q, plain_critics(features, action))


def test_critics_are_initialized_independently_like_nn_linear() -> None:
    critics = Critics(30, 20, (400, 300), 2)
    for parameter, fan_in in zip(critics.parameters(), [50, 50, 400, 400, 300, 300], strict=True):
        bound = 1 / math.sqrt(fan_in)
        assert parameter.abs().max() <= bound
        if parameter.numel() > 1000:
            assert parameter.abs().max() > 0.99 * bound
            # A uniform number's deviation is bound / sqrt(3).
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert not torch.equal(parameter[0], parameter[1])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_actor_is_a_plain_network_in_a_box(layer_norm: bool) -> None:
    actor = Actor(3, [-2.0, 0.0], [6.0, 1.0], (7, 5), layer_norm)
    for parameter in actor.parameters():
        parameter.data.normal_()
    weights = [p.detach() for p in actor.parameters()]
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    net = plain([pair for pair in pairs if pair[0].ndim == 2], [pair for pair in pairs if pair[0].ndim == 1])
    obs = torch.randn(11, 3)
    expected = torch.tensor([2.0, 0.5]) + torch.tensor([4.0, 0.5]) * torch.tanh(net(obs))
    torch.testing.assert_close(actor(obs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [TD3, TD7])
@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ([1.0], [0.0], r"must be a finite box, got \[1.0\] and \[0.0\]. Use the bounds of the env"),
        ([-1.0, -1.0], [1.0], "must be a finite box, got .* Use the bounds of the environment's action_space"),
        ([-3e38], [3e38], r"must be a finite box, .*SymmetricActionBounds"),
        ([-1.0], [math.inf], r"action_high\[0\] must be finite, got inf. Use a finite number"),
    ],
)
def test_invalid_action_bounds_are_refused(kind: Any, low: Any, high: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(2, low, high)
