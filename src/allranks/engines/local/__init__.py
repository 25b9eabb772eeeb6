"""The engine that needs nothing: agents as processes of this machine, one loopback address each."""
