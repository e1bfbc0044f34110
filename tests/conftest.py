"""Settings for every test: property tests draw the same examples each time, and none is judged by how long it takes."""

from hypothesis import settings

settings.register_profile("wmtp", derandomize=True, deadline=None)
settings.load_profile("wmtp")
