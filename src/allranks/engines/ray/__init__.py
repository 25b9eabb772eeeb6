"""Services on Ray: one Serve replica a gang, one actor a node, and in each actor the agent that every engine has.

``app`` is what Serve runs: ``door`` (HTTP) and ``gang`` (the coordinator), with a ``node`` actor for each node.
``keeper`` is the process on this machine that deploys it, follows it and takes it down. Ray is imported by ``app``,
``gang`` and ``keeper`` alone.
"""
