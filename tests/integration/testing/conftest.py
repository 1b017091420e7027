"""The fixtures that users have."""

from stretto.testing.fixtures import stretto_cluster, stretto_session_cluster

__all__ = ["stretto_cluster", "stretto_session_cluster"]
