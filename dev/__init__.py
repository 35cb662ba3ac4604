"""What only those who change rackhand need: gates, the lock file, the hooks, the tests."""
