"""Groups and members as a coordinator keeps them."""
