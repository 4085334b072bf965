"""The pages, as an ASGI application.

Rules:
- Pages only read. `/healthz` asks nothing of the broker, `/readyz` asks whether it serves, `/metrics` reads numbers.
- Numbers are read on the loop, since the loop owns them; the text is made in a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.gateways.http import metrics
from headrace.gateways.http.observed import Observed


def application(service: Observed, version: str, addresses: Callable[[], Mapping[str, str]]) -> ASGIApp:
    """The pages of one broker. `addresses` names its doors: {"kafka": "127.0.0.1:9092", …}."""
    page = metrics.Page(version)
    scraping = asyncio.Lock()  # one scrape at a time: a flood of them must not fill the workers

    async def index(_: Request) -> Response:
        links = {"health": "/healthz", "readiness": "/readyz", "metrics": "/metrics"}
        return JSONResponse({"name": "headrace", "version": version, "addresses": dict(addresses()), "links": links})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reasons = list(service.faults)
        if not service.ready:
            reasons.append("the broker has not finished starting, or is stopping")
        return JSONResponse({"ready": not reasons, "reasons": reasons}, status_code=503 if reasons else 200)

    async def metrics_page(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        async with scraping:
            numbers = await metrics.read(service)
            body, content_type = await asyncio.to_thread(page.encode, numbers, accept)
        return Response(body, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics_page),
        ]
    )
