"""The txids in a table's file, from its Parquet footer if the log lacks them.

Delta has bounds of the first 32 columns unless the table asks for more, and `txid` stands behind
the columns of the rows. Our tables ask (`create_table`). Those of earlier releases do not, and
whoever rewrites their files (OPTIMIZE) leaves the bounds of `txid` out.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from committers.publishing.files import ActiveFile, active_files
from committers.staging.parquet_stats import delta_stats
from txn.interfaces import StagedFile
from txn.storage.asking import in_parallel
from txn.storage.storage import Storage

__all__ = ["with_bounds"]


def with_bounds(files: Mapping[str, ActiveFile], storage: Storage) -> dict[str, ActiveFile]:
    """The files, with bounds of `txid` from their footers if the log has none.

    Raises:
        StorageUnavailableError, StorageRefusedError: a footer cannot be read now, or never.
    """
    unknown = [file for file in files.values() if None in (file.txid_min, file.txid_max)]
    if not unknown:
        return dict(files)
    found = in_parallel(lambda file: _in_footer(file, storage), unknown)
    return {**files, **{file.path: file for file in found}}


def _in_footer(file: ActiveFile, storage: Storage) -> ActiveFile:
    try:
        metadata = storage.footer(file.path, file.size)
    except pa.ArrowInvalid:
        metadata = None
    if metadata is None:
        return file  # gone, or no Parquet: whoever needs its rows says so
    whole = StagedFile(
        file.path, file.size, metadata.num_rows, file.partition, delta_stats(metadata)
    )
    return active_files([whole])[file.path]
