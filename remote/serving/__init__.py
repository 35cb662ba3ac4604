"""Model servers in this container: started, probed, watched by a parent, stopped."""
