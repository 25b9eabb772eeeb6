"""Services on Ray: one Serve replica a gang, one actor a node, and in each actor the agent that every engine has.

``app`` is what Serve runs: ``door`` (HTTP) and ``gang`` (the coordinator), with a ``node`` actor for each node.
``keeper`` is the process on this machine that follows it and takes it down, by a ``driver`` that speaks to Ray. Ray is
imported by ``app``, ``gang``, ``driver`` and ``tell`` alone. ``rayservice`` is the same on KubeRay.
"""
