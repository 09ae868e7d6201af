"""The application: routes and the error shape. The POST handlers are plain ASGI functions, because FastAPI's
parameter injection and response models would cost more than everything else the ingress does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from fastapi import FastAPI
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.core.fleet import Fleet
from services.core.routing import AUTO
from services.ingress.call_record import record_of
from services.ingress.calls import ModelCalls
from services.ingress.edge import Edge, known_error
from services.ingress.errors import ApiError, internal_error
from services.ingress.metrics import IngressMetrics
from services.ingress.openapi import openapi_document
from services.ingress.pool_choice import unknown_model
from services.ports import IdempotencyStore, StoreError
from services.runtime.current_fleet import CurrentFleet

Ready = Callable[[], Mapping[str, bool]]


# FastAPI's own spans would stand beside ours in every trace, and quote exceptions, queries and headers.
_NO_TELEMETRY = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


class _Api(FastAPI):
    """FastAPI with a document of its own: the routes that matter carry no models it could read."""

    def openapi(self) -> dict[str, Any]:
        return openapi_document()


def build_app(
    calls: ModelCalls,
    fleet: CurrentFleet,
    keys: IdempotencyStore,
    metrics: IngressMetrics,
    ready: Ready,
    shown: Ready,
) -> Edge:
    """`ready` names the parts that must be up and says of each whether it is, `shown` those that need not."""
    app = _Api(
        title="Chimera",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=cast("Any", _NO_TELEMETRY),  # a typed dict in the versions that know it
    )
    posts = {
        "/v1/chat/completions": calls.chat,
        "/v1/completions": calls.completion,
        "/v1/embeddings": calls.embedding,
    }
    for path, call in posts.items():  # the edge calls them itself; here they tell 405 from 404
        app.add_route(path, call, methods=["POST"])
    _add_models(app, fleet)
    _add_health(app, keys, metrics, ready, shown)
    app.add_exception_handler(ApiError, _known_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unknown_error)
    return Edge(app, metrics, posts)


def _add_models(app: FastAPI, fleet: CurrentFleet) -> None:
    async def list_models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(_model_list(fleet.now).values())})

    async def one_model(request: Request) -> Response:
        name, models = request.path_params["model"], _model_list(fleet.now)
        if name not in models:
            raise unknown_model(name)
        return JSONResponse(models[name])

    app.add_route("/v1/models", list_models, methods=["GET"])
    app.add_route("/v1/models/{model:path}", one_model, methods=["GET"])


def _add_health(
    app: FastAPI, keys: IdempotencyStore, metrics: IngressMetrics, ready: Ready, shown: Ready
) -> None:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        parts = ready()
        good = all(parts.values())
        all_parts = {name: "up" if up else "down" for name, up in {**parts, **shown()}.items()}
        status = "ok" if good else "unavailable"
        body = {"status": status, **all_parts, "database": await _database(keys)}
        return JSONResponse(body, 200 if good else 503)

    async def metrics_text(_: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    app.add_route("/healthz", healthz, methods=["GET"])
    app.add_route("/readyz", readyz, methods=["GET"])
    app.add_route("/metrics", metrics_text, methods=["GET"])


async def _database(keys: IdempotencyStore) -> str:
    try:
        await keys.ping()
    except StoreError:
        return "down"
    return "up"


async def _known_error(request: Request, fault: Exception) -> Response:
    if not isinstance(fault, ApiError):
        raise fault
    return known_error(fault, record_of(request.scope))


async def _http_error(request: Request, fault: Exception) -> Response:
    """What routing refuses: no such path, or not with this method."""
    if not isinstance(fault, HTTPException):
        raise fault
    shown = f"{request.method} {request.url.path[:256]}"
    if fault.status_code == 405:
        error = ApiError(
            405, f"Method not allowed: {shown}.", code="method_not_allowed", headers=fault.headers
        )
    elif fault.status_code == 404:
        error = ApiError(404, f"Unknown request URL: {shown}.", code="unknown_url")
    else:
        error = ApiError(fault.status_code, str(fault.detail), headers=fault.headers)
    return error.response()


async def _unknown_error(_: Request, _fault: Exception) -> Response:
    """The shape alone: the edge logs the fault, which Starlette raises on."""
    return internal_error().response()


def _model_list(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """`auto`, every pool by name, every model that pools share."""
    owners = {AUTO: "chimera"}
    owners |= {pool.name: pool.provider for pool in fleet.pools}
    for pool in fleet.pools:
        owners.setdefault(pool.model, pool.provider)
    return {
        name: {"id": name, "object": "model", "created": 0, "owned_by": owner}
        for name, owner in owners.items()
    }
