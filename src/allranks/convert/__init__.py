"""What somebody wrote for another tool, as a spec."""
