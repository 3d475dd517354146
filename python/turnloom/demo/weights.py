"""The trainer's weights to the policy server, over TCP."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Mapping

import safetensors.torch
import torch

from turnloom.testing.cpu import WeightTransfer

_TIMEOUT_S = 30.0


class WeightsOverHttp(WeightTransfer):
    """Posts each version of the weights to the policy server, which takes them between two batches.

    Args:
        policy_url: the policy server.
        enabled: whether weights are sent at all; without them the policy stays as it is, and nothing is learned.
    """

    def __init__(self, policy_url: str, *, enabled: bool = True) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(urllib.parse.urlsplit(policy_url).netloc, timeout=_TIMEOUT_S)
        self._enabled = enabled

    def publish(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        if self._enabled:
            self.post(weights)

    def post(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the policy's weights.

        Raises:
            RuntimeError: the policy server did not take them.
        """
        self._connection.request("POST", "/weights", safetensors.torch.save(dict(weights)))
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"the policy server did not take the weights: {response.status} {body[:500]!r}")

    def destroy(self) -> None:
        self._connection.close()
