"""What the user writes: a Job and its parts, and the way from a YAML file to it and back.

Nothing is imported here, so that the command line starts fast: import ``allranks.spec.load`` or ``.job``.
"""
