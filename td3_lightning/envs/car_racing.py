"""CarRacing-v3 with a vector of 15 observations, and a wrapper that combines gas and brake."""

import math
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pygame
from gymnasium.envs.box2d import car_racing
from gymnasium.utils import EzPickle

from td3_lightning.errors import UsageError, refuse, require_float

Floats = npt.NDArray[np.float64]
Observation = npt.NDArray[np.float32]

RAY_DEGREES = np.array([-45.0, -15.0, -5.0, 0.0, 5.0, 15.0, 45.0])  # negative is left, as for the steering action
RAY_RANGES = np.array([30.0, 60.0, 100.0, 140.0, 100.0, 60.0, 30.0])  # track units that are scaled to 1
TILES_AHEAD = (3, 5, 7, 10, 15, 20)
PASSED = range(3, 13)  # tiles this far behind a wheel count as passed
POINTS_AHEAD = TILES_AHEAD[-1] + 2  # enough to interpolate between the last tile and the next one
TOP_SPEED = 100.0  # units/s: Box2D limits a body to 2 units per step of 1/50 s
WHEEL_LIMIT = 0.4  # radians, the limit of the wheel's joint
SCALES = np.array([TOP_SPEED, *RAY_RANGES, WHEEL_LIMIT] + 6 * [math.pi / 2], np.float32)
LOW = np.array([0.0] + 7 * [-1.0] + [-1.0] + 6 * [-2.0], np.float32)
HIGH = np.array([1.0] + 7 * [1.0] + [1.0] + 6 * [2.0], np.float32)
_ANGLES = np.radians(RAY_DEGREES)
_COSINES = np.cos(_ANGLES)

# Maps (right, ahead) to ahead and to the distance from each ray's line, positive to its right.
_PROBES = np.array([[0.0, 1.0], *([1.0, -tangent] for tangent in np.tan(_ANGLES))])
_DIRECTIONS = np.stack([np.sin(_ANGLES), np.cos(_ANGLES)])  # (2, 7), in the car's frame
_LINE_COLOR, _DOT_COLOR = (255, 255, 0), (220, 0, 220)


class CarRacing(car_racing.CarRacing):
    """Drive in Gymnasium's CarRacing-v3 with 15 float32 observations instead of pixels.

    The physics, tracks, reward and actions are those of CarRacing-v3. Each observation is a quantity divided by its
    scale and clipped to its range. Angles are positive to the right, as for the steering action. The road is 13.3 units
    wide. A tile is 3.5 units long (the first one 5 to 10).

    | index | quantity                                                      | unit    | scale | range   |
    |-------|---------------------------------------------------------------|---------|-------|---------|
    | 0     | speed                                                         | units/s | 100   | [0, 1]  |
    | 1     | distance to the edge of the road, 45 degrees to the left      | units   | 30    | [-1, 1] |
    | 2     | the same, 15 degrees to the left                              | units   | 60    | [-1, 1] |
    | 3     | the same, 5 degrees to the left                               | units   | 100   | [-1, 1] |
    | 4     | the same, straight ahead                                      | units   | 140   | [-1, 1] |
    | 5     | the same, 5 degrees to the right                              | units   | 100   | [-1, 1] |
    | 6     | the same, 15 degrees to the right                             | units   | 60    | [-1, 1] |
    | 7     | the same, 45 degrees to the right                             | units   | 30    | [-1, 1] |
    | 8     | angle of the front wheels                                     | radians | 0.4   | [-1, 1] |
    | 9-14  | bearing of the road 3, 5, 7, 10, 15 and 20 tiles ahead        | radians | pi/2  | [-2, 2] |

    Distances start at the center of the car. They are positive on the road. Off the road they are the negative distance
    to the first edge on the ray. A ray without an edge gives 1 on the road and -1 off the road. A bearing is the angle
    from the heading to a point on the center line of the road. This point is the given number of tiles ahead of the
    point beside the car. The points are interpolated linearly between tiles.

    `info` contains at every reset and step: `tiles` visited, `tiles_total`, `frames` since the reset, `lap` and
    `lap_return`. `lap` is true once every tile has been visited. `lap_return` is the return of a whole lap without
    costs for missed tiles, or 0 if a tile is missing. Its mean over episodes selects policies that complete their laps.

    Args:
        render_mode: None, or "rgb_array" or "human" for Gymnasium's frames.
        track_seed: Seed of the track in every episode. None means a new track in each episode.
        stall_limit: Number of frames without a new tile after which the episode is truncated. None means no limit.
        draw_rays: Draw the rays and their intersections with the edges of the road on the frames.
        missed_cost: Cost per missed tile, which CarRacing-v3 does not have. It is subtracted from the reward once per
            tile, when the car reaches a new tile. A tile is missed if it is 3 to 12 tiles behind a tile under a wheel,
            and no wheel has touched it. Use this for training, because the discount makes cutting corners profitable.
        missed_limit: Largest number of missed tiles that are charged at once. None means no limit. With 1, a car that
            returns to the road is not charged for the whole way beside it.
        random_starts: Share of episodes that start at a random tile of the fixed track, in [0, 1]. Use this for
            training, because an agent that starts at the first tile may never learn to pass a hard corner.

    Raises:
        UsageError: An argument is out of range.
    """

    # Gymnasium's types allow None, but these are None only before the first reset.
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
        missed_limit: int | None = None,
        random_starts: float = 0.0,
    ) -> None:
        if render_mode not in (None, "human", "rgb_array"):
            raise refuse("render_mode", '"human", "rgb_array" or None', render_mode, 'Use "rgb_array" for frames.')
        if missed_cost < 0 or (stall_limit is not None and stall_limit < 1):
            got = f"{missed_cost} and {stall_limit}"
            raise UsageError(f"missed_cost must be at least 0 and stall_limit at least 1, got {got}. Change them.")
        random_starts = require_float("random_starts", random_starts, least=0, most=1)
        if random_starts and track_seed is None:
            raise refuse("random_starts", "0 without track_seed", random_starts, "Set track_seed to fix the track.")
        super().__init__(render_mode=render_mode)
        EzPickle.__init__(
            self, render_mode, track_seed, stall_limit, draw_rays, missed_cost, missed_limit, random_starts
        )
        self.track_seed, self.stall_limit, self.draw_rays = track_seed, stall_limit, draw_rays
        self.missed_cost, self.missed_limit, self.random_starts = missed_cost, missed_limit, random_starts
        self._start = 0.0
        self.observation_space = gymnasium.spaces.Box(LOW, HIGH)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode. With a fixed track, the environment's random generator only chooses the first tile."""
        self.frames = self._last_new_tile = self._tiles_seen = 0
        self._missed: set[int] = set()
        if self.track_seed is None:
            observation, _ = super().reset(seed=seed, options=options)
        else:
            gymnasium.Env.reset(self, seed=seed)
            own_generator = self.np_random
            if self.random_starts:
                starts_anywhere, start = own_generator.random(2)
                self._start = start if starts_anywhere < self.random_starts else 0.0
            self._np_random, _ = gymnasium.utils.seeding.np_random(self.track_seed)
            observation, _ = super().reset(options=options)
            self._np_random = own_generator
        return observation, self._progress()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Drive one frame. The action None from Gymnasium's `reset` does not count as a frame."""
        observation, reward, terminated, truncated, info = super().step(action)
        if action is not None:
            self.frames += 1
        if self.tile_visited_count > self._tiles_seen:
            self._tiles_seen, self._last_new_tile = self.tile_visited_count, self.frames
            if self.missed_cost:
                reward -= self.missed_cost * min(self._newly_missed(), self.missed_limit or math.inf)
        stalled = self.stall_limit is not None and self.frames - self._last_new_tile >= self.stall_limit
        truncated = truncated or (stalled and not terminated)
        return observation, float(reward), terminated, truncated, {**info, **self._progress()}

    def _newly_missed(self) -> int:
        """Count the passed tiles that were not touched and have not been counted before."""
        before = len(self._missed)
        for touched in {tile.idx for wheel in self.car.wheels for tile in wheel.tiles}:
            passed = self.road[max(touched - PASSED[-1], 0) : max(touched - PASSED[0] + 1, 0)]
            self._missed.update(tile.idx for tile in passed if not tile.road_visited)
        return len(self._missed) - before

    def _progress(self) -> dict[str, Any]:
        tiles, total = self.tile_visited_count, len(self.track)
        lap = tiles == total
        lap_return = 1000.0 - 0.1 * self.frames if lap else 0.0
        return {"tiles": tiles, "tiles_total": total, "frames": self.frames, "lap": lap, "lap_return": lap_return}

    def _create_track(self) -> bool:
        made = bool(super()._create_track())  # type: ignore[no-untyped-call]
        if made:
            self._renumber_tiles(first=int(self._start * len(self.track)))
            self._survey_track()
        return made

    def _renumber_tiles(self, first: int) -> None:
        """Count the tiles from this one on. The car starts at tile 0."""
        self.track = self.track[first:] + self.track[:first]
        self.road = self.road[first:] + self.road[:first]
        for index, tile in enumerate(self.road):
            tile.idx = index

    def _survey_track(self) -> None:
        """Compute the points (x, y, 1) of the edges, (3, 2 * tiles + 4), and of the center line, (3, tiles + 22)."""
        _, beta, x, y = np.array(self.track).T
        middle = np.stack([x, y, np.ones_like(x)])
        half_width = car_racing.TRACK_WIDTH * np.stack([np.cos(beta), np.sin(beta), np.zeros_like(x)])
        left, right, gap = middle - half_width, middle + half_width, np.full((3, 1), np.nan)
        self.edges = np.concatenate([left, left[:, :1], gap, right, right[:, :1], gap], axis=1)
        # The center line continues past the last tile, so that the road ahead is always one slice.
        self._middle = np.concatenate([middle, middle[:, :POINTS_AHEAD]], axis=1)

    def _render(self, mode: str) -> Any:
        # Gymnasium's step renders its observation in this mode.
        return self._observe() if mode == "state_pixels" else super()._render(mode)

    def _observe(self) -> Observation:
        to_car = self._to_car()
        velocity, wheel = self.car.hull.linearVelocity, self.car.wheels[0].joint.angle
        speed = math.hypot(velocity.x, velocity.y)
        distances = _ray_distances(to_car, self.edges)
        bearings = _bearings(to_car, self._middle, len(self.track))
        # Box2D's angles are positive to the left.
        scaled: Observation = np.array([speed, *distances, -wheel, *bearings], np.float32) / SCALES
        return np.minimum(np.maximum(scaled, LOW), HIGH)  # np.clip is slower for small arrays

    def _to_car(self) -> Floats:
        """Return the matrix (2, 3) that maps world coordinates (x, y, 1) to (right, ahead) of the car."""
        hull = self.car.hull
        x, y = hull.position.x, hull.position.y
        cosine, sine = math.cos(hull.angle), math.sin(hull.angle)
        return np.array([[cosine, sine, -cosine * x - sine * y], [-sine, cosine, sine * x - cosine * y]])

    def _render_road(self, zoom: float, translation: tuple[float, float], angle: float) -> None:
        super()._render_road(zoom, translation, angle)  # type: ignore[no-untyped-call]
        if self.draw_rays:
            self._render_rays(zoom, translation, angle)

    def _render_rays(self, zoom: float, translation: tuple[float, float], angle: float) -> None:
        reach = np.abs(_ray_distances(self._to_car(), self.edges))
        met, shown = reach <= RAY_RANGES, np.minimum(reach, RAY_RANGES)

        def on_screen(right: float, forward: float) -> pygame.math.Vector2:
            world = self.car.hull.GetWorldPoint((right, forward))
            return pygame.math.Vector2(*world).rotate_rad(angle) * zoom + translation

        for end, hit in zip((shown * _DIRECTIONS).T.tolist(), met, strict=True):
            pygame.draw.line(self.surf, _LINE_COLOR, on_screen(0.0, 0.0), on_screen(*end), width=3)
            if hit:
                pygame.draw.circle(self.surf, _DOT_COLOR, on_screen(*end), radius=8)


def _ray_distances(to_car: Floats, edges: Floats) -> list[float]:
    """Return each ray's distance to the first edge: negative off the road, infinite without an edge.

    All edges are used, because a window would miss some of them if the car is turned or off the road.
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
        if distance > 0.0:  # excludes edges behind the car and the NaN between the two lines
            met += 1
            if distance < distances[index]:
                distances[index] = distance
    # On the road each of the 7 rays crosses edges an odd number of times, off the road an even number.
    return distances if met % 2 == 1 else [-distance for distance in distances]


def _bearings(to_car: Floats, middle: Floats, tiles: int) -> list[float]:
    """Return the angles from the heading to the points of the center line ahead, in [-pi, pi]."""
    seen = to_car @ middle
    right, ahead = seen[:, :tiles]
    squared = right * right + ahead * ahead
    nearest = int(squared.argmin())
    # The minimum of the parabola through three squared distances moves continuously from tile to tile.
    before = float(squared[nearest - 1] - squared[nearest])
    after = float(squared[(nearest + 1) % tiles] - squared[nearest])
    beside = (nearest + 0.5 * (before - after) / max(before + after, 1e-9)) % tiles
    tile, part = int(beside), beside % 1.0
    xs, ys = seen[:, tile : tile + POINTS_AHEAD].tolist()
    return [math.atan2(xs[k] + part * (xs[k + 1] - xs[k]), ys[k] + part * (ys[k + 1] - ys[k])) for k in TILES_AHEAD]


class Pedals(gymnasium.ActionWrapper[Any, Any, Any]):
    """Drive with two actions in [-1, 1]: steering, and a pedal. Positive pedal values are gas, negative ones brake.

    Args:
        env: An environment with three actions: steering in [-1, 1], gas in [0, 1] and brake in [0, 1].

    Raises:
        UsageError: The environment has other actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        expected = gymnasium.spaces.Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32))
        if env.action_space != expected:
            raise UsageError(
                f"Pedals requires the actions {expected}, got {env.action_space}. Use it with CarRacing only."
            )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert (steering, pedal) to (steering, gas, brake)."""
        steering, pedal = action
        return np.array([steering, max(pedal, 0.0), max(-pedal, 0.0)], np.float32)
