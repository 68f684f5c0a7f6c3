"""Devices and hosts: mesh and sharding, kernel choice, FLOP counts, compilation cache."""
