"""A Ray Serve application of two replicas, one a node."""

from __future__ import annotations

import os
import socket
from typing import Any

import look
from ray import serve


class Host:
    def __call__(self, request: Any) -> dict[str, object]:
        return {"host": socket.gethostname(), "pid": os.getpid(), "look": look.around("replica")}


ACTOR = {"num_cpus": 0.1}
app = serve.deployment(num_replicas=2, max_replicas_per_node=1, ray_actor_options=ACTOR)(Host).bind()
