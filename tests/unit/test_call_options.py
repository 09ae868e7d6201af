"""What a caller may say beside the body: affinity, data policy, and who a gateway says it is."""

from __future__ import annotations

import pytest

from services.core.call_options import CallOptions, read_options, read_tenant
from services.core.field_checks import Refusal


def test_affinity_and_data_policy_are_read_from_headers_and_metadata() -> None:
    assert read_options({}, {}) == CallOptions(affinity="soft", data_policy="any")
    headers = {"x-chimera-affinity": "sticky", "x-chimera-data-policy": " local "}
    assert read_options(headers, {}) == CallOptions(affinity="sticky", data_policy="local")
    metadata = {"chimera_affinity": "off", "chimera_data_policy": "local"}
    assert read_options({}, metadata) == CallOptions(affinity="off", data_policy="local")


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [("affinity", "always", "sticky, soft, off"), ("data-policy", "private", "any, local")],
)
def test_a_wrong_one_is_refused_by_name_with_what_is_known(name: str, value: str, known: str) -> None:
    for headers, metadata, param in (
        ({f"x-chimera-{name}": value}, {}, f"x-chimera-{name}"),
        ({}, {f"chimera_{name.replace('-', '_')}": value}, f"metadata.chimera_{name.replace('-', '_')}"),
    ):
        verdict = read_options(headers, metadata)
        assert isinstance(verdict, Refusal)
        assert verdict.param == param
        assert known in verdict.message


def test_a_tenant_counts_only_where_a_gateway_is_trusted() -> None:
    told = {"x-chimera-tenant": "acme:team-1"}
    assert read_tenant(told, trusted=True) == "acme:team-1"
    assert read_tenant(told, trusted=False) == "default"
    assert read_tenant({}, trusted=True) == "default"
    assert read_tenant({"x-chimera-tenant": "bad\nname"}, trusted=False) == "default"


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "-a", "a" * 129, "a\nb", 'a"b'])
def test_a_malformed_tenant_is_refused(name: str) -> None:
    verdict = read_tenant({"x-chimera-tenant": name}, trusted=True)
    assert isinstance(verdict, Refusal)
    assert verdict.param == "x-chimera-tenant"
