"""The simulation of redrives."""
