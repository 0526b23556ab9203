"""Logins, users, rules and quotas."""
