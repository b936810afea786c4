"""Files on disk: the store of runs, and the ledger of accounts that runs and processes share."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.accounting.ledger import Ledger as Ledger, MemoryLedger as MemoryLedger
    from watchkeeper.runtime.parking import Park as Park
    from watchkeeper.store.answers import Waiting as Waiting, answer as answer, pending as pending
    from watchkeeper.store.ledger_file import AccountReport as AccountReport, account_reports as account_reports
    from watchkeeper.store.ledger_file import settle_by_hand as settle_by_hand
    from watchkeeper.store.run_index import StoredRun as StoredRun
    from watchkeeper.store.run_store import RunStore as RunStore, StoredEvent as StoredEvent
    from watchkeeper.store.sqlite_ledger import SqliteLedger as SqliteLedger
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "accounting.ledger": "Ledger MemoryLedger",
            "runtime.parking": "Park",
            "store.answers": "Waiting answer pending",
            "store.ledger_file": "AccountReport account_reports settle_by_hand",
            "store.run_index": "StoredRun",
            "store.run_store": "RunStore StoredEvent",
            "store.sqlite_ledger": "SqliteLedger",
        },
    )
