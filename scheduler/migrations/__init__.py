"""The ledger's schema, step by step. A step that a release has had is never changed: the next one mends it."""
