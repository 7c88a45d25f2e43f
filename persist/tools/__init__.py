"""What people look with: reports, the page, and the command line."""
