"""The archive by day, read without Spark: python spark_examples/without_spark.py DIR [VERSION]"""

import sys

from deltalake import DeltaTable

directory, *version = sys.argv[1:]
table = DeltaTable(directory, version=int(version[0]) if version else None)
rows = table.to_pyarrow_table(columns=["date", "queue"]).group_by("date")
days = rows.aggregate([("queue", "count_distinct"), ("queue", "count")]).sort_by("date")
print("date        queues  records")
for day in days.to_pylist():
    print(f"{day['date']}{day['queue_count_distinct']:8}{day['queue_count']:9}")
print(f"version {table.version()}, from {len(table.file_uris())} files")
