"""Diffusion models as channels: when does a noisy state decide which class it comes from?"""
