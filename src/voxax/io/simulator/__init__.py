"""Simulated LiDAR sweeps."""

from voxax.io.simulator.scene import StreetScene, street_scene
from voxax.io.simulator.sensor import SENSORS, Sensor
from voxax.io.simulator.solids import CLASS_NAMES, SHAPE_NAMES, Solids
from voxax.io.simulator.sweep import simulate_sweep
from voxax.io.simulator.terrain import Street, Terrain

__all__ = [
    "CLASS_NAMES",
    "SENSORS",
    "SHAPE_NAMES",
    "Sensor",
    "Solids",
    "Street",
    "StreetScene",
    "Terrain",
    "simulate_sweep",
    "street_scene",
]
