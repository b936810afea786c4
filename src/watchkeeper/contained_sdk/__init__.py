"""HTTP clients for providers' SDKs: every call that an SDK makes passes the gate."""
