"""Data and runs in gs:// and s3:// buckets, and datasets and models on the Hugging Face Hub."""
