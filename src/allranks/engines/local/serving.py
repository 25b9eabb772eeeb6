"""A service on this machine: one gang, whose first node answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.engines.local import plan
from allranks.errors import SpecError
from allranks.serving.probe import origin

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.spec.job import Job
    from allranks.spec.service import Service


def plan_service(service: Service, folder: Path) -> Plan:
    """Render the service's gang. Raises SpecError for a model that a gang of that size cannot serve."""
    from allranks.spec.write import dump

    if service.replicas != 1:
        raise SpecError(
            f"replicas: found {service.replicas}; engine local runs one gang; start another with its own --name, --port"
        )
    address = origin(service.host or "127.0.0.1", service.port)
    return replace(plan.plan(_gang(service, folder), folder), spec=dump(service), address=address)


def _gang(service: Service, folder: Path) -> Job:
    if service.model is None:
        return service.gang()
    from allranks.serving.check import must_be_servable
    from allranks.serving.options import of_service, serving

    if service.api_key and service.api_key.secret:
        raise SpecError("api_key.secret: there are no Secrets on this machine; use api_key.env or api_key.file")
    options = of_service(service, folder)
    must_be_servable(service, options)
    return serving(service, options, sys.executable)
