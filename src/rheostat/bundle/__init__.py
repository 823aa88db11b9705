"""One folder, many budgets, no torch: what is in a bundle, and how it answers."""

from rheostat.bundle.manifest import BundleInfo, Graph, Point
from rheostat.bundle.runtime import Bundle, open_bundle

__all__ = ["Bundle", "BundleInfo", "Graph", "Point", "open_bundle"]
