"""What a plan must know of the cluster that it is for, as a value: nothing here asks anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gang = Literal["", "kueue", "volcano", "coscheduling", "kai"]
Patches = Literal["runtimePatches", "podTemplateOverrides", "podSpecOverrides"]


@dataclass(frozen=True)
class Cluster:
    """What the API server has. The defaults are what is assumed where no cluster can be asked.

    ``namespace`` is the client's current one. ``gang`` is what admits whole gangs there, empty where nothing is known.
    ``jobset`` is whether JobSet is installed; ``patches`` the field of a TrainJob that changes its runtime's pods
    (Trainer 2.2 and later, 2.1, 2.0); ``runai`` the version of the command line.
    """

    namespace: str = "default"
    gang: Gang = ""
    jobset: bool = True
    patches: Patches = "runtimePatches"
    runai: Literal[1, 2] = 2
