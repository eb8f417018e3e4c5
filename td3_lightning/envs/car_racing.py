"""Gymnasium's CarRacing seen as 15 numbers instead of pixels, and gas and brake on one axis."""

import math
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pygame
from gymnasium.envs.box2d import car_racing
from gymnasium.utils import EzPickle

from td3_lightning.errors import UsageError, refuse, require_bool, require_float, require_int

Floats = npt.NDArray[np.float64]


Observation = npt.NDArray[np.float32]


RAY_DEGREES = np.array([-45.0, -15.0, -5.0, 0.0, 5.0, 15.0, 45.0])  # negative to the left, as the steering


RAY_RANGES = np.array([30.0, 60.0, 100.0, 140.0, 100.0, 60.0, 30.0])  # track units that read as 1


TILES_AHEAD = (3, 5, 7, 10, 15, 20)


PASSED = range(3, 13)  # this many tiles behind one that a wheel touches lies the road that the car has passed


POINTS_AHEAD = TILES_AHEAD[-1] + 2  # what the road 20 and a part tiles ahead lies between


TOP_SPEED = 100.0  # Box2D moves no body further than 2 units in a step of 1/50 s


WHEEL_LIMIT = 0.4  # radians, where the wheel's joint stops


SCALES = np.array([TOP_SPEED, *RAY_RANGES, WHEEL_LIMIT] + 6 * [math.pi / 2], np.float32)


LOW = np.array([0.0] + 7 * [-1.0] + [-1.0] + 6 * [-2.0], np.float32)


HIGH = np.array([1.0] + 7 * [1.0] + [1.0] + 6 * [2.0], np.float32)


_ANGLES = np.radians(RAY_DEGREES)


_COSINES = np.cos(_ANGLES)


# From (right, ahead) to (ahead, then how far to the right of each ray's line).
_PROBES = np.array([[0.0, 1.0], *([1.0, -tangent] for tangent in np.tan(_ANGLES))])


_DIRECTIONS = np.stack([np.sin(_ANGLES), np.cos(_ANGLES)])  # (2, 7), in the car's frame


_LINE_COLOR, _DOT_COLOR = (255, 255, 0), (220, 0, 220)


class CarRacing(car_racing.CarRacing):
    """Gymnasium's CarRacing-v3 (its physics, tracks, reward and actions) observed as 15 float32 numbers.

    A number is its meaning divided by its scale and clipped to its range. Angles are positive to the right,
    as the steering action is. The road is 13.3 units wide, a tile 3.5 long (the first one 5 to 10).

    | index | meaning                                                       | unit    | scale | range   |
    |-------|---------------------------------------------------------------|---------|-------|---------|
    | 0     | speed                                                         | units/s | 100   | [0, 1]  |
    | 1     | distance to the road's edge, 45 degrees to the heading's left | units   | 30    | [-1, 1] |
    | 2     | the same, 15 degrees to the left                              | units   | 60    | [-1, 1] |
    | 3     | the same, 5 degrees to the left                               | units   | 100   | [-1, 1] |
    | 4     | the same, straight ahead                                      | units   | 140   | [-1, 1] |
    | 5     | the same, 5 degrees to the right                              | units   | 100   | [-1, 1] |
    | 6     | the same, 15 degrees to the right                             | units   | 60    | [-1, 1] |
    | 7     | the same, 45 degrees to the right                             | units   | 30    | [-1, 1] |
    | 8     | angle of the front wheels                                     | radians | 0.4   | [-1, 1] |
    | 9-14  | bearing of the road 3, 5, 7, 10, 15 and 20 tiles ahead        | radians | pi/2  | [-2, 2] |

    Distances are taken from the middle of the car. On the road they are positive; off it they are minus the
    distance to the first edge that the ray meets. A ray that meets none reads 1 on the road, -1 off it.
    A bearing is the angle from the heading to the point of the road's middle line that many tiles after the
    point beside the car, wherever the car is; between two tiles' middles that point moves evenly.

    `info` holds, at every reset and step: `tiles` visited, `tiles_total`, `frames` since the reset, and
    `lap`, true once every tile has been visited.

    Args:
        render_mode: None draws nothing; "rgb_array" or "human" draw what Gymnasium draws.
        track_seed: seed of CarRacing-v3's track to drive in every episode; None makes a new track each time.
        stall_limit: frames without a new tile after which the episode is truncated; None never does.
        missed_cost: taken off the reward, which Gymnasium does not, whenever the car reaches a new tile: once for each
            tile among the 3rd to 12th before one that a wheel is on, by their numbers, that has not been touched. It is
            for training, where a discounted sum makes it worth while to cut a corner.
        draw_rays: whether the rays and the points where they meet the road's edge are drawn on the frames.

    Raises:
        UsageError: an argument is outside what is said above.
    """

    # Gymnasium's types allow None, which only an environment never reset has.
    car: Any
    road: Any
    surf: Any
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": car_racing.FPS}  # noqa: RUF012

    def __init__(
        self,
        render_mode: str | None = None,
        track_seed: int | None = None,
        stall_limit: int | None = None,
        draw_rays: bool = False,
        missed_cost: float = 0.0,
    ) -> None:
        if render_mode not in (None, "human", "rgb_array"):
            raise refuse("render_mode", '"human", "rgb_array" or None', render_mode, 'Use "rgb_array" for frames.')
        track_seed = None if track_seed is None else require_int("track_seed", track_seed, least=0)
        stall_limit = None if stall_limit is None else require_int("stall_limit", stall_limit, least=1)
        draw_rays = require_bool("draw_rays", draw_rays)
        missed_cost = require_float("missed_cost", missed_cost, least=0)
        super().__init__(render_mode=render_mode)
        EzPickle.__init__(self, render_mode, track_seed, stall_limit, draw_rays, missed_cost)
        self.track_seed = track_seed
        self.stall_limit = stall_limit
        self.draw_rays = draw_rays
        self.missed_cost = missed_cost
        self.observation_space = gymnasium.spaces.Box(LOW, HIGH)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; a fixed track leaves the environment's own generator as it was."""
        self.frames = self._last_new_tile = self._tiles_seen = 0
        self._missed: set[int] = set()
        if self.track_seed is None:
            observation, _ = super().reset(seed=seed, options=options)
        else:
            gymnasium.Env.reset(self, seed=seed)
            own_generator = self.np_random
            self._np_random, _ = gymnasium.utils.seeding.np_random(self.track_seed)
            observation, _ = super().reset(options=options)
            self._np_random = own_generator
        return observation, self._progress()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Drive one frame; the None that Gymnasium's own reset passes counts for none."""
        observation, reward, terminated, truncated, info = super().step(action)
        if action is not None:
            self.frames += 1
        if self.tile_visited_count > self._tiles_seen:
            self._tiles_seen, self._last_new_tile = self.tile_visited_count, self.frames
            if self.missed_cost:
                reward -= self.missed_cost * self._newly_missed()
        stalled = self.stall_limit is not None and self.frames - self._last_new_tile >= self.stall_limit
        truncated = truncated or (stalled and not terminated)
        return observation, float(reward), terminated, truncated, {**info, **self._progress()}

    def _newly_missed(self) -> int:
        """Count the tiles that the car has passed by now, and that it has neither touched nor been charged for."""
        before = len(self._missed)
        for touched in {tile.idx for wheel in self.car.wheels for tile in wheel.tiles}:
            passed = self.road[max(touched - PASSED[-1], 0) : max(touched - PASSED[0] + 1, 0)]
            self._missed.update(tile.idx for tile in passed if not tile.road_visited)
        return len(self._missed) - before

    def _progress(self) -> dict[str, Any]:
        tiles, total = self.tile_visited_count, len(self.track)
        return {"tiles": tiles, "tiles_total": total, "frames": self.frames, "lap": tiles == total}

    def _create_track(self) -> bool:
        made = bool(super()._create_track())  # type: ignore[no-untyped-call]
        if made:
            self._survey_track()
        return made

    def _survey_track(self) -> None:
        """Lay out the road's edges, (3, 2 * tiles + 4), and its middle, (3, tiles + 22), as points (x, y, 1)."""
        _, beta, x, y = np.array(self.track).T
        middle = np.stack([x, y, np.ones_like(x)])
        half_width = car_racing.TRACK_WIDTH * np.stack([np.cos(beta), np.sin(beta), np.zeros_like(x)])
        left, right, gap = middle - half_width, middle + half_width, np.full((3, 1), np.nan)
        self._edges = np.concatenate([left, left[:, :1], gap, right, right[:, :1], gap], axis=1)
        # The middle goes on past the last tile, so that the road ahead is always one slice.
        self._middle = np.concatenate([middle, middle[:, :POINTS_AHEAD]], axis=1)

    def _render(self, mode: str) -> Any:
        # Gymnasium's step asks for its observation as a picture of this mode.
        return self._observe() if mode == "state_pixels" else super()._render(mode)

    def _observe(self) -> Observation:
        to_car = self._to_car()
        velocity, wheel = self.car.hull.linearVelocity, self.car.wheels[0].joint.angle
        speed = math.hypot(velocity.x, velocity.y)
        distances = _ray_distances(to_car, self._edges)
        bearings = _bearings(to_car, self._middle, len(self.track))
        # Box2D's angles are positive to the left.
        scaled: Observation = np.array([speed, *distances, -wheel, *bearings], np.float32) / SCALES
        return np.minimum(np.maximum(scaled, LOW), HIGH)  # np.clip takes three times as long

    def _to_car(self) -> Floats:
        """Give the matrix, (2, 3), from the world's (x, y, 1) to units to the right of the car and ahead."""
        hull = self.car.hull
        x, y = hull.position.x, hull.position.y
        cosine, sine = math.cos(hull.angle), math.sin(hull.angle)
        return np.array([[cosine, sine, -cosine * x - sine * y], [-sine, cosine, sine * x - cosine * y]])

    def _render_road(self, zoom: float, translation: tuple[float, float], angle: float) -> None:
        super()._render_road(zoom, translation, angle)  # type: ignore[no-untyped-call]
        if self.draw_rays:
            self._render_rays(zoom, translation, angle)

    def _render_rays(self, zoom: float, translation: tuple[float, float], angle: float) -> None:
        reach = np.abs(_ray_distances(self._to_car(), self._edges))
        met, shown = reach <= RAY_RANGES, np.minimum(reach, RAY_RANGES)

        def on_screen(right: float, forward: float) -> pygame.math.Vector2:
            world = self.car.hull.GetWorldPoint((right, forward))
            return pygame.math.Vector2(*world).rotate_rad(angle) * zoom + translation

        for end, hit in zip((shown * _DIRECTIONS).T.tolist(), met, strict=True):
            pygame.draw.line(self.surf, _LINE_COLOR, on_screen(0.0, 0.0), on_screen(*end), width=3)
            if hit:
                pygame.draw.circle(self.surf, _DOT_COLOR, on_screen(*end), radius=8)


def _ray_distances(to_car: Floats, edges: Floats) -> list[float]:
    """Give each ray's distance to the first edge: negative off the road, infinite where it meets none.

    All the edges are looked at: a window of them would miss some where the car stands askew or off the road.
    """
    points = edges.shape[1]
    probed = (_PROBES @ to_car @ edges).ravel()
    beyond = probed[points:]
    side = beyond > 0.0
    crossed = (side[1:] != side[:-1]).nonzero()[0]
    ray, edge = np.divmod(crossed, points)
    start, end = beyond[crossed], beyond[crossed + 1]
    near, far = probed[edge], probed[edge + 1]
    meets = (near + (far - near) * (start / (start - end))) / _COSINES[ray]
    distances, met = [math.inf] * len(RAY_DEGREES), 0
    for index, distance in zip(ray.tolist(), meets.tolist(), strict=True):
        if distance > 0.0:  # neither behind the car nor the NaN of a gap between two lines
            met += 1
            if distance < distances[index]:
                distances[index] = distance
    # From a place on the road each of the 7 rays meets edges an odd number of times, from any other an even.
    return distances if met % 2 == 1 else [-distance for distance in distances]


def _bearings(to_car: Floats, middle: Floats, tiles: int) -> list[float]:
    """Give the angles from the heading to the middle of the road ahead, in [-pi, pi]."""
    seen = to_car @ middle
    right, ahead = seen[:, :tiles]
    squared = right * right + ahead * ahead
    nearest = int(squared.argmin())
    # Beside the car the parabola through three squared distances is least; from tile to tile it never jumps.
    before = float(squared[nearest - 1] - squared[nearest])
    after = float(squared[(nearest + 1) % tiles] - squared[nearest])
    beside = (nearest + 0.5 * (before - after) / max(before + after, 1e-9)) % tiles
    tile, part = int(beside), beside % 1.0
    xs, ys = seen[:, tile : tile + POINTS_AHEAD].tolist()
    return [math.atan2(xs[k] + part * (xs[k + 1] - xs[k]), ys[k] + part * (ys[k + 1] - ys[k])) for k in TILES_AHEAD]


class Pedals(gymnasium.ActionWrapper[Any, Any, Any]):
    """Drive with two numbers in [-1, 1]: steering, and a pedal that is gas above zero and brake below it.

    Args:
        env: an environment whose actions are steering in [-1, 1], gas in [0, 1] and brake in [0, 1].

    Raises:
        UsageError: the environment has other actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        wanted = gymnasium.spaces.Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32))
        if env.action_space != wanted:
            raise UsageError(f"Pedals requires the actions {wanted}, got {env.action_space}. Wrap a CarRacing with it.")
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Give (steering, gas, brake) for (steering, pedal)."""
        steering, pedal = action
        return np.array([steering, max(pedal, 0.0), max(-pedal, 0.0)], np.float32)
