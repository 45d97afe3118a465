"""What users bring: exports of known models, and the whole way from file to numbers."""
