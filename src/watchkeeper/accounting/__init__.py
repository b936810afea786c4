"""Who may spend what: requests, accounts, the decision whether a call is admitted, and ledgers."""
