"""Files on disk: the store of runs, and the ledger of accounts that runs and processes share."""

from typing import TYPE_CHECKING

from watchkeeper.core.lazy_names import public_names

if TYPE_CHECKING:
    from watchkeeper.accounting.ledger import Ledger as Ledger, MemoryLedger as MemoryLedger
    from watchkeeper.ledgers.ledger_file import AccountReport as AccountReport, account_reports as account_reports
    from watchkeeper.ledgers.ledger_file import settle_by_hand as settle_by_hand
    from watchkeeper.ledgers.sqlite_ledger import SqliteLedger as SqliteLedger
    from watchkeeper.runtime.parking import Park as Park
    from watchkeeper.store.answers import Waiting as Waiting, answer as answer, pending as pending
    from watchkeeper.store.cancelling import cancel as cancel
    from watchkeeper.store.run_index import StoredRun as StoredRun
    from watchkeeper.store.run_store import RunStore as RunStore, StoredEvent as StoredEvent
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "accounting.ledger": "Ledger MemoryLedger",
            "ledgers.ledger_file": "AccountReport account_reports settle_by_hand",
            "ledgers.sqlite_ledger": "SqliteLedger",
            "runtime.parking": "Park",
            "store.answers": "Waiting answer pending",
            "store.cancelling": "cancel",
            "store.run_index": "StoredRun",
            "store.run_store": "RunStore StoredEvent",
        },
    )
