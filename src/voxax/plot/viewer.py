"""A server that shows a cloud in a browser, with a choice of colors and their legend."""

from __future__ import annotations

import contextlib
import html
import io
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxax.errors import InputError, import_extra
from voxax.plot.boxed import EDGES, BoxKind, dashed
from voxax.plot.camera import compose, direction, sample_rows
from voxax.plot.coloring import Coloring
from voxax.plot.palette import rgb

MOST_POINTS = 1_000_000
_FIELD_OF_VIEW = 0.8  # radians
# So many points, side by side on the diagonal of the drawn box, just touch.
_POINTS_ACROSS = 500


@dataclass(frozen=True)
class Stepped:
    """A coloring that also depends on a whole number, which the page sets with a slider.

    Attributes:
      label: name of the number, shown beside the slider.
      count: number of values: the slider runs from 0 to ``count - 1``.
      color: function of the number that returns a :class:`Coloring`.
    """

    label: str
    count: int
    color: Callable[[int], Coloring]


class Viewer:
    """A web server whose page shows a point cloud with a choice of colors, until :meth:`stop`.

    Every browser that opens ``url`` sees the same colors. If every point has an entry of the
    legend, such as its class, the points of an entry can be hidden. The page uses no other server.
    It shows at most 1,000,000 points, chosen at random with a fixed seed, and says so.

    Args:
      positions: [N, 3] floats, in meters; N is at least 1.
      colorings: one or more choices by name. A choice is a function that returns the
          :class:`Coloring` of all N points when its name is chosen, or a :class:`Stepped`.
      chosen: name of the coloring to show first.
      title: heading above the choice of colors.
      up: the cloud's axis that points up: "z", "y" or "-y".
      host: address to listen on; only this machine can reach the default address.
      port: the first free port from this number on is used; 0 lets the system choose.
      boxes: groups of boxes to draw around objects; true boxes are dashed. The page can hide each
          group, and detected boxes with low scores.

    Raises:
      InputError: there are no points or no finite positions, a name or an axis is unknown, or this
        machine has no address `host`.
      MissingExtraError: viser is not installed.
    """

    def __init__(
        self,
        positions: np.ndarray,
        colorings: Mapping[str, Callable[[], Coloring] | Stepped],
        chosen: str,
        *,
        title: str = "",
        up: str = "z",
        host: str = "127.0.0.1",
        port: int = 8080,
        boxes: Sequence[BoxKind] = (),
    ) -> None:
        viser = import_extra("drawing", "view", "viser")
        if chosen not in colorings:
            raise InputError(
                f"there are no colors by {chosen!r} here, only by {', '.join(colorings)}"
            )
        scene = compose(np.asarray(positions, np.float64), up)
        if len(scene.index) == 0:
            raise InputError("there are no points to show")
        self._shown = sample_rows(len(positions), MOST_POINTS)
        # Survey coordinates are millions of meters: a graphics card's float32 needs small ones.
        drawn = positions[scene.index]
        center = (drawn.min(axis=0) + drawn.max(axis=0)) / 2
        points = (positions[self._shown] - center).astype(np.float32)
        diagonal = float(np.linalg.norm(scene.size)) or 1.0

        self._colorings = dict(colorings)
        _check_host(host)
        with _silence():
            self._server = server = viser.ViserServer(host=host, port=port, verbose=False)
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.dock_right()
        server.scene.set_up_direction({"z": "+z", "y": "+y", "-y": "-y"}[up])
        camera = server.initial_camera
        camera.fov = _FIELD_OF_VIEW
        distance = 0.42 * diagonal / math.tan(_FIELD_OF_VIEW / 2)
        camera.position = tuple(scene.to_cloud.T @ direction(scene) * distance)
        camera.look_at = (0.0, 0.0, 0.0)
        camera.near, camera.far = diagonal / 1000, diagonal * 100
        if title:
            facts = f"{len(positions):,} points"
            if len(points) < len(positions):
                facts += f", {len(points):,} of them shown, chosen at random"
            server.gui.add_markdown(f"**{html.escape(title)}**  \n{facts}")
        self._choice = server.gui.add_dropdown("Color", tuple(colorings), initial_value=chosen)
        self._number = server.gui.add_slider("Number", 0, 1, 1, 0, visible=False)
        self._size = server.gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
        self._legend = server.gui.add_html("")
        self._switches_folder = server.gui.add_folder("Show", visible=False)
        self._switches: list[Any] = []
        self._points = points
        self._cloud = server.scene.add_point_cloud(
            "/points",
            points,
            np.zeros((len(points), 3), np.uint8),
            point_size=diagonal / _POINTS_ACROSS,
            point_shape="circle",
            point_shading="flat",
            precision="float32",
        )
        self._boxes = [_Boxes(server, kind, center, number) for number, kind in enumerate(boxes)]
        if self._boxes:
            score = server.gui.add_slider("Lowest score", 0.0, 1.0, 0.05, 0.3)

            def keep(event: Any = None) -> None:
                del event
                for own in self._boxes:
                    own.draw(score.value)

            score.on_update(keep)
            keep()
        self._choice.on_update(self._chosen)
        self._number.on_update(self._paint)

        def resize(event: Any) -> None:
            del event
            self._cloud.point_size = self._size.value * diagonal / _POINTS_ACROSS

        self._size.on_update(resize)
        self._chosen()

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self._server.get_host()}:{self._server.get_port()}"

    def show(self, name: str) -> None:
        """Switch to the coloring with this name, as the drop-down list on the page does.

        Raises:
          InputError: the name is unknown.
        """
        if name not in self._colorings:
            known = ", ".join(self._colorings)
            raise InputError(f"there are no colors by {name!r} here, only by {known}")
        self._choice.value = name  # calls _chosen

    def stop(self) -> None:
        """Close the server."""
        with _silence():
            self._server.stop()

    def _chosen(self, event: Any = None) -> None:
        del event
        coloring = self._colorings[self._choice.value]
        if isinstance(coloring, Stepped):
            self._number.label = coloring.label
            self._number.max = max(coloring.count - 1, 1)
            self._number.value = coloring.count // 2
        self._number.visible = isinstance(coloring, Stepped)
        for switch in self._switches:
            switch.remove()
        self._switches = []
        self._paint()
        self._switches_folder.visible = bool(self._switches)

    def _paint(self, event: Any = None) -> None:
        del event
        coloring = self._colorings[self._choice.value]
        if isinstance(coloring, Stepped):
            painted = coloring.color(min(int(self._number.value), coloring.count - 1))
        else:
            painted = coloring()
        self._legend.content = _legend(painted)
        kept = np.ones(len(self._points), bool)
        if painted.entries is not None:
            self._add_switches(painted)
            on = np.array([switch.value for switch in self._switches], bool)
            kept = on[painted.entries[self._shown]]
        with self._server.atomic():
            self._cloud.points = self._points[kept]
            self._cloud.colors = painted.colors[self._shown][kept]

    def _add_switches(self, painted: Coloring) -> None:
        """Add a checkbox for each legend entry of `painted`, to hide the entry's points.

        Nothing is added if there are checkboxes already.
        """
        if self._switches:
            return
        with self._switches_folder:
            for words, _ in painted.legend:
                switch = self._server.gui.add_checkbox(words.partition(":")[0], initial_value=True)
                switch.on_update(self._paint)
                self._switches.append(switch)


class _Boxes:
    """A group of boxes in the viewer's scene, with a checkbox that hides the group."""

    def __init__(self, server: Any, kind: BoxKind, center: np.ndarray, number: int) -> None:
        self._server, self._kind, self._center = server, kind, center
        self._name, self._lowest = f"/boxes/{number}", 0.0
        words = f"{kind.name}: {len(kind.labels)}"
        self._switch = server.gui.add_checkbox(words, initial_value=True)
        self._switch.on_update(lambda event: self.draw(self._lowest))
        self._handles: list[Any] = []

    def draw(self, lowest: float) -> None:
        """Redraw the boxes, without detected boxes whose score is below ``lowest``."""
        kind, self._lowest = self._kind, lowest
        for handle in self._handles:
            handle.remove()
        self._handles = []
        shown = np.flatnonzero(~(kind.scores < lowest))
        if not self._switch.value or not len(shown):
            return
        scene, places = self._server.scene, kind.corners[shown] - self._center
        lines = places[:, EDGES].reshape(-1, 2, 3)
        lines = dashed(lines) if kind.is_true else lines
        color = rgb(kind.color)
        self._handles.append(
            scene.add_line_segments(
                f"{self._name}/lines",
                lines.astype(np.float32),
                np.broadcast_to(color, lines.shape).copy(),
                thickness=0.04 if kind.is_true else 0.08,
            )
        )
        for row, corners in zip(shown, places, strict=True):
            if np.isfinite(kind.scores[row]):
                top = corners[4:].mean(axis=0)
                name = f"{self._name}/score{row}"
                label = scene.add_label(name, f"{kind.scores[row]:.2f}", position=tuple(top))
                self._handles.append(label)


def _check_host(host: str) -> None:
    """Raise InputError unless this machine can listen on the address; viser would wait forever."""
    error: Exception | None = None
    try:
        for family, kind, number, _, address in socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM
        ):
            try:
                with socket.socket(family, kind, number) as tried:
                    tried.bind(address)
                return
            except OSError as failed:
                error = failed
    except (OSError, UnicodeError) as failed:
        error = failed
    raise InputError(
        f"cannot listen on {host!r}: {error}. Give an address of this machine, such as 127.0.0.1, "
        "or 0.0.0.0 for all of them"
    ) from error


def _silence() -> contextlib.AbstractContextManager:
    # viser prints a box when it starts and a line when it stops, even with verbose=False.
    return contextlib.redirect_stdout(io.StringIO())


def _legend(coloring: Coloring) -> str:
    rows = [
        f'<div><span style="display:inline-block;width:.9em;height:.9em;background:{color};'
        f'margin-right:.5em"></span>{html.escape(words)}</div>'
        for words, color in coloring.legend
    ]
    note = f"<div>{html.escape(coloring.note)}</div>" if coloring.note else ""
    return f'<div style="padding:.5em 1em;font-size:.85em">{note}{"".join(rows)}</div>'
