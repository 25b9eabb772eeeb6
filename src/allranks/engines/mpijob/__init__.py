"""MPIJob of the Kubeflow MPI operator (kubeflow.org/v2beta1)."""
