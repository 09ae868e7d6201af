"""Which pool does what was admitted, over HTTP or from `submissions`: the core's routing."""

from __future__ import annotations

from schemas.messages import TaskKind
from services.core.admission import Admitted
from services.core.call_options import CallOptions
from services.core.fleet import Fleet, Pool
from services.core.routing import Load, Need, NoneAble, UnknownModel, route
from services.ingress.errors import ApiError


def pool_for(kind: TaskKind, admitted: Admitted, options: CallOptions, fleet: Fleet, load: Load) -> Pool:
    """Raises ApiError: 404 for an unknown model, 400 where no pool is able."""
    need = Need(
        kind=kind,
        model=admitted.model,
        objective=options.objective,
        capabilities=options.required_capabilities,
        features=admitted.features,
        input_tokens=admitted.input_tokens,
        output_tokens=admitted.output_tokens,
        data_policy=options.data_policy,
    )
    routed = route(need, fleet.pools, load)
    if isinstance(routed, UnknownModel):
        raise unknown_model(admitted.model)
    if isinstance(routed, NoneAble):
        raise ApiError(400, f"No pool can do this: {routed}.", param="model", code="no_pool")
    return routed


def unknown_model(model: str) -> ApiError:
    return ApiError(
        404, f"The model '{model[:128]}' does not exist here.", param="model", code="model_not_found"
    )
