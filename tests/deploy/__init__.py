"""The files in deploy/: Kubernetes, compose, images."""
