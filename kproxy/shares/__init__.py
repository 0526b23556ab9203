"""Share groups (KIP-932) beside the records: who holds which records until when."""
