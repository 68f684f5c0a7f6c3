"""Data and runs in gs:// and s3:// buckets."""
