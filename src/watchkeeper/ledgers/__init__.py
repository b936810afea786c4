"""Accounts on disk: the ledger that the processes of one machine share. Public names: `watchkeeper.store`."""
