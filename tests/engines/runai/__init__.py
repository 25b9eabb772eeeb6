"""The engine runai."""
