"""Parts of the fold, a module for each family."""
