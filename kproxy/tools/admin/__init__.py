"""Answers for operators: transactions, users, rules, quotas."""
