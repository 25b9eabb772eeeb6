"""A real Kubernetes with the real operators on one machine; ``python -m tests.cluster --help``."""
