"""CRDs and webhooks of an operator, from the files that its module ships, as the cluster takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.components import Component


def write(component: Component, module: Path) -> None:
    """Keep the component's CRDs and webhooks as JSON, so that a boot reads no YAML and no module."""
    crds = [_crd(component, one) for pattern in component.crds for one in _documents(module, pattern)]
    hooks = [_hooks(component, one) for one in _documents(module, component.webhooks)] if component.webhooks else []
    component.manifests.parent.mkdir(parents=True, exist_ok=True)
    made = component.manifests.with_suffix(".part")
    made.write_text(json.dumps({"crds": crds, "webhooks": [hook for hook in hooks if hook["webhooks"]]}))
    made.rename(component.manifests)


def read(component: Component, authority: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The CRDs and the webhook configurations; ``authority`` is the webhooks' CA certificate, base64."""
    kept = json.loads(component.manifests.read_text())
    for crd in kept["crds"]:
        if "conversion" in crd["spec"]:
            crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = authority
    for configuration in kept["webhooks"]:
        for hook in configuration["webhooks"]:
            hook["clientConfig"]["caBundle"] = authority
    return kept["crds"], kept["webhooks"]


def _documents(module: Path, pattern: str) -> list[dict[str, Any]]:
    import yaml  # only who builds needs it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = sorted(module.glob(pattern))
    if not files:
        raise FileNotFoundError(f"no {pattern} in {module}")
    return [one for file in files for one in yaml.load_all(file.read_text(), Loader=loader) if one]


def _crd(component: Component, crd: dict[str, Any]) -> dict[str, Any]:
    crd.pop("status", None)
    versions = crd["spec"]["versions"]
    wanted = component.crd_versions
    crd["spec"]["versions"] = [one for one in versions if not wanted or one["name"] in wanted]
    for version in crd["spec"]["versions"]:
        version["schema"] = _undescribed(version["schema"])
    if len(crd["spec"]["versions"]) > 1 and component.webhook_port:
        crd["spec"]["conversion"] = {
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": f"https://127.0.0.1:{component.webhook_port}/convert"},
            },
        }
    return crd


def _undescribed(schema: Any) -> Any:
    """Without descriptions: less than half of the bytes for the API server to take in, the same validation."""
    if isinstance(schema, dict):
        return {
            key: _undescribed(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [_undescribed(one) for one in schema] if isinstance(schema, list) else schema


def _hooks(component: Component, configuration: dict[str, Any]) -> dict[str, Any]:
    """By URL: the API server runs beside the operators, and no Service leads to them."""
    hooks = configuration["webhooks"]
    configuration["webhooks"] = [hook for hook in hooks if not component.hooked or hook["name"] in component.hooked]
    for hook in configuration["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{component.webhook_port}{path}"}
    configuration["metadata"] = {"name": _name(component, configuration["kind"])}
    return configuration


def _name(component: Component, kind: str) -> str:
    if component.name == "training-operator":
        return "validator.training-operator.kubeflow.org"  # its certificate rotation looks for this name
    return f"{component.name}-{'mutating' if kind.startswith('Mutating') else 'validating'}"
