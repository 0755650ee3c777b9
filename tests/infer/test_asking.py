"""Requests from asyncio: the loop goes on, and a cancelled task cancels its request."""

import asyncio

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.infer import Inferer
from tests.infer.test_inferer import floats


@pytest.mark.parametrize("max_batch", [1, 8])
def test_asyncio(max_batch: int) -> None:
    net = nn.Linear(3, 2)
    with Inferer(net, device="cpu", max_batch=max_batch, queue_limit=4) as inferer:

        async def work() -> None:
            answers = await asyncio.gather(*[inferer.ask(floats(k % 5, 1, 3)) for k in range(40)])
            for k, y in enumerate(answers):
                wanted = net(lm.tensor(floats(k % 5, 1, 3))).numpy()
                np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)
            task = asyncio.ensure_future(inferer.ask(floats(0, 1, 3)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(work())
