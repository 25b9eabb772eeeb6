"""Profiles of the property tests: ``pytest tests/spec --hypothesis-profile=thorough`` runs fifty times as many.

Neither has hypothesis' deadline of wall time, which a busy machine breaks; the tests bound processor time.
"""

from hypothesis import settings

settings.register_profile("thorough", max_examples=5_000, deadline=None)
settings.register_profile("steady", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("steady")
