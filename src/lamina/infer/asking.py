"""Requests from asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from lamina.infer.batching import QueueFull
from lamina.infer.serving import Serving


async def asked(serving: Serving, inputs: Any) -> Any:
    """The outputs, without blocking the event loop. Cancelling the task cancels the request."""
    kind, given, count = serving.kind_of(inputs)
    use = serving.known(kind)
    if use is None:  # compiling a program takes long
        use = await asyncio.to_thread(serving.made, kind, given, count)
    put = serving.queue.put
    try:
        future = put(use.program, given, use.count, block=False)
    except QueueFull:
        if serving.when_full == "raise":
            raise
        future = await asyncio.to_thread(put, use.program, given, use.count, block=True)
    return await asyncio.wrap_future(future)
