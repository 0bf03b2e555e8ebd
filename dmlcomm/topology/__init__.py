"""Topologies as the papers describe them: their equations and circuits. Pure; no torch, no lab."""
