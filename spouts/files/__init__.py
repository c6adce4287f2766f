"""Files of a folder, as they appear there."""

from __future__ import annotations

from spouts.files.batch import FileBatch, PlannedFile
from spouts.files.spout import FileSpout

__all__ = ["FileBatch", "FileSpout", "PlannedFile"]
