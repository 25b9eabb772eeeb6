"""PyTorchJob of the Kubeflow training operator (kubeflow.org/v1)."""
