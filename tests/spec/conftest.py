"""Profiles of the property tests: ``pytest tests/spec --hypothesis-profile=thorough`` runs fifty times as many."""

from hypothesis import settings

settings.register_profile("thorough", max_examples=5_000, deadline=None)
