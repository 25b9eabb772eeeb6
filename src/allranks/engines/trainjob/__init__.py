"""TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1)."""
