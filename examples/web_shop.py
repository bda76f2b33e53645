"""A web application that sends: FastAPI, with the producer in its lifespan.

    inorder up                                       # in another terminal
    pip install fastapi uvicorn
    uvicorn web_shop:app --app-dir examples
    curl -X POST localhost:8000/orders/order-1/paid

The producer starts with the application and is closed with it: uvicorn ends the running requests
first, then `async with` waits for the outcome of every message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request

from inorder.aio import Producer
from inorder.errors import InorderError, OutcomeUnknown, SendTimedOut


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have one producer for the whole application: requests share its connections."""
    async with Producer() as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


def producer_of(request: Request) -> Producer:
    """Return the producer of the application."""
    return request.app.state.producer


@app.post("/orders/{order}/{step}", status_code=201)
async def add_step(
    order: str, step: str, producer: Annotated[Producer, Depends(producer_of)]
) -> dict[str, int]:
    """Store a step of an order. The answer comes when the broker has it."""
    try:
        receipt = await producer.send("orders", step.encode(), key=order, timeout=2)
    except (OutcomeUnknown, SendTimedOut) as error:
        raise HTTPException(504, f"the step may be stored: {error}") from error
    except InorderError as error:
        raise HTTPException(503, f"the step is not stored: {error}") from error
    return {"queue": receipt.queue.index, "offset": receipt.offset}
