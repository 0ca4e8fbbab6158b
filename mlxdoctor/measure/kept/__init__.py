"""What models measured, kept in a file and read back in place of running them."""
