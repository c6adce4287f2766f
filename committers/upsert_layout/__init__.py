"""`layout="upsert"`: one row per key, in hash buckets that a commit turn rewrites."""
