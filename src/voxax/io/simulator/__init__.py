"""Simulate labeled LiDAR sweeps of random streets by ray casting: training data without download.

``simulate_sweep(seed)`` generates a street (:func:`street_scene`) and returns the points that a
spinning sensor in the middle of the street measures. The same seed gives the same points. One core
needs about 0.15 s for a sweep of ``lidar32``, 0.25 s for ``lidar64`` and 0.3 s for ``lidar128``,
half of it to generate the street.

What is in a street
    A straight or curved street, half the time with a crossing street, on sloping and
    undulating ground with curbs; rows of houses (median 12 x 10 x 11 m) with gaps, bays,
    balconies, porches, gardens and low walls; parked and driving cars, vans and trucks
    (median 4.5 x 1.8 x 1.6 m); lamps, signs, traffic lights, utility poles and bollards
    (diameter 8 / 16 / 25 cm and height 1.0 / 3.0 / 7.9 m at the 10th / 50th / 90th
    percentile); trees, bushes and hedges; adults (1.7 m) and children, alone and in groups.
    Within 30 m of the sensor are about 36 persons (31 to 45) and 38 poles (30 to 48), many
    more than in most recorded sweeps, so that these two classes can be learned from few sweeps.
    Trunks have the class vegetation; curbs, roadway and sidewalk have the class ground; garden
    walls and porch columns have the class building.

How hard it is
    Numbers are measured on seeds 0 to 19. Share of the points per class, in percent:

    ========  ======  ========  =======  ====  ==========  ======
    sensor    ground  building  vehicle  pole  vegetation  person
    ========  ======  ========  =======  ====  ==========  ======
    lidar32     53.7      21.8     12.2   2.9         7.3     2.1
    lidar64     53.0      16.5     18.4   2.7         5.9     3.5
    lidar128    56.2      25.1      7.5   2.9         7.0     1.3
    ========  ======  ========  =======  ====  ==========  ======

    Median number of points per sweep, with the smallest number in any sweep in brackets:

    ========  ==========  ==========  ============  ============  ==========  ==========
    sensor    all points  building    vehicle       pole          vegetation  person
    ========  ==========  ==========  ============  ============  ==========  ==========
    lidar32       25 914  5497 (3296)   3276 (1251)     707 (303)  1714 (466)   545 (189)
    lidar64       61 321  9424 (4359)  10958 (5342)    1639 (651)  3487 (431)  2080 (749)
    lidar128      90 744  23128 (9177)  6988 (2570)    2419 (729)  4322 (948)  1151 (370)
    ========  ==========  ==========  ============  ============  ==========  ==========

    - Occlusion: objects of other classes hide a quarter of the points that persons would have
      (``lidar32`` 25 %, ``lidar64`` 28 %), of poles 19 % and 29 %, of vegetation 30 % and 43 %,
      of buildings 30 % and 40 %, of vehicles 4 % and 5 %; objects also hide others of their class.
    - Noise: 2 cm of range (``lidar128`` 1.5 cm), along the ray. At least 4 % of the returns
      are lost, up to 30 % more at full range, and up to 60 % more on surfaces seen edge-on.
    - Similar shapes: bollards and persons in long coats; poles, young trees and porch columns;
      hedges, garden walls and vehicles. Rays return from a random depth in crowns and hedges.
    - Weak intensity: the best guess from intensity only is right for 58 % of the points ("ground"
      for all: 54 %), and for 25 % if all classes have the same weight (chance: 17 %).

Not modeled
    Motion during a revolution, several returns per ray, beam width (points in the air between
    two objects), reflections and glass, weather, interiors, and clutter outside the six classes.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
