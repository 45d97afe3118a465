"""Per study: its tables and every SQL statement over them."""
