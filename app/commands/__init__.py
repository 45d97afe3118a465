"""The commands of `cloudchamber`, one module each. Heavy imports happen inside the functions."""
