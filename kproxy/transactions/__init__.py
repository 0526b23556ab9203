"""Coordinators of transactions: soft state and background work around what the fold decides."""
