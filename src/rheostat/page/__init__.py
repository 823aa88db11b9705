"""The report of a checkpoint: one HTML page without a network, and its main plot as a picture."""

from rheostat.page.content import Content, read_content
from rheostat.page.writing import write_page, write_picture

__all__ = ["Content", "read_content", "write_page", "write_picture"]
