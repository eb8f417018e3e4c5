"""Compare the car's 15 observations with slow arithmetic, and the rest with Gymnasium's CarRacing-v3."""

import itertools
import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.box2d import car_racing as gymnasium_car
from gymnasium.utils.env_checker import check_env

import td3_lightning  # noqa: F401 (registers the environment)
from td3_lightning.envs.car_racing import Pedals

TURNS = [math.radians(degrees) for degrees in (-45, -15, -5, 0, 5, 15, 45)]
RANGES = [30, 60, 100, 140, 100, 60, 30]
AHEAD = [3, 5, 7, 10, 15, 20]
HALF_WIDTH = 40 / 6


class BlindCar(gymnasium_car.CarRacing):
    """Skip the rendering of Gymnasium's car to save time."""

    def _render(self, mode):
        return np.zeros((96, 96, 3), np.uint8)


@pytest.fixture
def make():
    """Return a function that makes cars and closes them after the test."""
    made = []

    def make_car(**keywords):
        made.append(gymnasium.make("td3_lightning/CarRacing-v0", max_episode_steps=3000, **keywords))
        return made[-1]

    yield make_car
    for env in made:
        env.close()


@pytest.fixture
def no_window(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def drive(observation):
    """Return (steer, gas, brake): steer by the road 5 tiles ahead, and brake for curves 10 and 15 tiles ahead."""
    bend = max(abs(observation[12]), abs(observation[13]))
    too_fast = observation[0] - 0.9 * max(0.4, 1 - 1.1 * bend)
    controls = 2 * observation[10], -10 * too_fast, 5 * too_fast
    return np.clip(controls, [-1, 0, 0], [1, 1, 0.8]).astype(np.float32)


def some_actions(count, seed=0):
    """Return random actions, each repeated for 8 frames."""
    held = np.random.default_rng(seed).uniform([-1, 0, -1], [1, 1, 1], (count // 8 + 1, 3))
    return np.repeat(np.clip(held, [-1, 0, 0], [0.6, 1, 1]), 8, axis=0)[:count].astype(np.float32)


def look_from(car, x, y, angle):
    """Return the observation at a pose. Angle 0 points along +y, positive angles to the left."""
    car.car.hull.position, car.car.hull.angle = (x, y), angle
    return car._render("state_pixels")


def put(car, tile):
    """Place the car at the center of a tile, along the road. It touches the tile in the next step."""
    _, heading, x, y = car.track[tile]
    hull = car.car.hull
    turn, (left, bottom) = heading - hull.angle, hull.position
    cosine, sine = math.cos(turn), math.sin(turn)
    for body in (*car.car.wheels, hull):
        right, up = body.position[0] - left, body.position[1] - bottom
        body.position = x + cosine * right - sine * up, y + sine * right + cosine * up
        body.angle += turn
        body.linearVelocity, body.angularVelocity = (0, 0), 0


# The slow reference: one segment at a time, nothing shared with the environment but its list of tiles.


def sides_of(track):
    """Return every tile's (left start, left end, right start, right end)."""
    ends = [
        [(x + side * HALF_WIDTH * math.cos(beta), y + side * HALF_WIDTH * math.sin(beta)) for side in (-1, 1)]
        for _, beta, x, y in track
    ]
    return [(*pair[::2], *pair[1::2]) for pair in (ends[i - 1] + ends[i] for i in range(len(ends)))]


def distance_to_segment(place, direction, start, end):
    """Solve place + t * direction = start + u * (end - start) for t >= 0 and u in [0, 1]."""
    ex, ey, ox, oy = end[0] - start[0], end[1] - start[1], start[0] - place[0], start[1] - place[1]
    determinant = ex * direction[1] - ey * direction[0]
    if determinant == 0:
        return math.inf
    t, u = (ex * oy - ey * ox) / determinant, (direction[0] * oy - direction[1] * ox) / determinant
    return t if t >= 0 and 0 <= u <= 1 else math.inf


def inside(place, corners):
    """Count the polygon sides that a line to the right of the point crosses."""
    crossings = 0
    for (ax, ay), (bx, by) in itertools.pairwise([*corners, corners[0]]):
        if (ay > place[1]) != (by > place[1]):
            crossings += place[0] < ax + (place[1] - ay) / (by - ay) * (bx - ax)
    return crossings % 2 == 1


def slow_rays(track, place, angle):
    sides = sides_of(track)
    on_road = any(inside(place, (a, b, d, c)) for a, b, c, d in sides)
    edges = [edge for a, b, c, d in sides for edge in ((a, b), (c, d))]
    numbers = []
    for turn, longest in zip(TURNS, RANGES, strict=True):
        direction = -math.sin(angle - turn), math.cos(angle - turn)
        nearest = min(distance_to_segment(place, direction, *edge) for edge in edges)
        numbers.append((1 if on_road else -1) * min(nearest / longest, 1))
    return numbers


def slow_bearing(place, angle, target):
    """Return the angle from the heading to the target in quarter turns, positive to the right."""
    to_target = math.atan2(target[1] - place[1], target[0] - place[0])
    turn = angle + math.pi / 2 - to_target
    return (turn - 2 * math.pi * round(turn / (2 * math.pi))) / (math.pi / 2)


def slow_bearings(track, place, angle):
    """Compute the bearings from the minimum of the parabola through the nearest three squared distances."""
    squared = [math.dist(place, tile[2:]) ** 2 for tile in track]
    nearest = squared.index(min(squared))
    a, b, _ = np.polyfit([-1, 0, 1], [squared[(nearest + k) % len(track)] for k in (-1, 0, 1)], 2)
    whole, part = divmod(nearest - b / (2 * a), 1)
    points = []
    for ahead in AHEAD:
        (*_, x0, y0), (*_, x1, y1) = (track[(int(whole) + ahead + k) % len(track)] for k in (0, 1))
        points.append((x0 + part * (x1 - x0), y0 + part * (y1 - y0)))
    return [slow_bearing(place, angle, point) for point in points]


@pytest.mark.parametrize("track_seed", [123, 31])
def test_rays_and_bearings_match_exhaustive_search(make, track_seed):
    car, chance = make(track_seed=track_seed).unwrapped, np.random.default_rng(track_seed)
    car.reset()
    signs = []
    for tile in [*chance.integers(len(car.track), size=25), *[-2, -1, -1, -1, 0, 0, 1]]:
        x, y = car.track[tile][2:] + chance.uniform(-10, 10, 2)
        observation = look_from(car, x, y, chance.uniform(-20, 20))
        place, angle = tuple(car.car.hull.position), car.car.hull.angle
        rays = slow_rays(car.track, place, angle)
        np.testing.assert_allclose(observation[1:8], rays, rtol=0, atol=2e-5)
        np.testing.assert_allclose(observation[9:], slow_bearings(car.track, place, angle), rtol=0, atol=2e-5)
        signs.append(rays[0] > 0)
    assert 5 < sum(signs) < 28  # both on the road and off it


def test_speed_and_wheel_angle_signs(make):
    env = make(track_seed=123)
    env.reset()
    hull, wheel = env.unwrapped.car.hull, env.unwrapped.car.wheels[0]
    for _ in range(60):
        observation, *_ = env.step(np.array([0.0, 0.5, 0.0], np.float32))
    heading = hull.angle
    for _ in range(6):
        observation, *_ = env.step(np.array([1.0, 0.0, 0.0], np.float32))
        assert observation[0] == pytest.approx(math.hypot(*hull.linearVelocity) / 100, abs=1e-6)
        assert observation[8] == pytest.approx(-wheel.joint.angle / 0.4, abs=1e-6)
    assert observation[8] > 0.7
    assert hull.angle < heading  # Box2D's angles are positive to the left
    hull.linearVelocity = (3, -4)
    assert env.unwrapped._render("state_pixels")[0] == pytest.approx(0.05)


def test_observations_are_in_observation_space(make):
    env = make(render_mode=None)
    spins = [np.array([1.0, 1.0, 0.0], np.float32)] * 150
    bolts = [np.array([0.0, 0.3, 0.0], np.float32)] * 400  # off the road, then off the playfield
    lowest, highest, left_playfield = np.full(15, np.inf), np.full(15, -np.inf), False
    for seed, actions in enumerate([some_actions(300), spins, bolts, [a * [-1, 1, 1] for a in spins]]):
        observation, _ = env.reset(seed=seed)
        for action in actions:
            assert env.observation_space.contains(observation)
            lowest, highest = np.minimum(lowest, observation), np.maximum(highest, observation)
            observation, reward, terminated, _, info = env.step(np.float32(action))
            if terminated:
                left_playfield = reward == -100 and not info["lap_finished"] and not info["lap"]
                assert env.observation_space.contains(observation)
                break
    assert left_playfield
    assert np.all(lowest[1:8] == -1)
    assert np.all(highest[1:8] > 0.3)
    assert np.all(highest[9:] > 1.5)
    assert np.all(lowest[9:] < -1.5)
    env.unwrapped.car.hull.linearVelocity = (200, 0)
    assert env.unwrapped._render("state_pixels")[0] == 1


@pytest.mark.parametrize("seed", [5])
def test_physics_reward_and_termination_match_gymnasium(make, seed):
    ours, theirs = make().unwrapped, BlindCar()
    observation, _ = ours.reset(seed=seed)
    theirs.reset(seed=seed)
    stop, bolt = np.array([[0, 0, 1], [0, 0.3, 0]], np.float32)
    rough = iter([*some_actions(100, seed), *[stop] * 50])
    for frame in range(1000):
        action = drive(observation) if frame < 100 else next(rough, bolt)
        observation, *our_end, our_info = ours.step(action)
        _, *their_end, their_info = theirs.step(action)
        assert our_end == their_end
        assert our_info.get("lap_finished") == their_info.get("lap_finished")
        for mine, other in zip(ours.car.drawlist, theirs.car.drawlist, strict=True):
            assert tuple(mine.position) == tuple(other.position)
            assert mine.angle == other.angle
        if our_end[1]:
            break
    assert our_end[:2] == [-100, True]


def test_track_seed_fixes_track_and_preserves_generator(make):
    theirs, ours = BlindCar(), make(track_seed=123)
    theirs.reset(seed=123)
    for seed in (None, 7, 7, None):
        ours.reset(seed=seed)
        assert ours.unwrapped.track == theirs.track
        if seed is not None:
            untouched = np.random.default_rng(seed).bit_generator.state
            assert ours.unwrapped.np_random.bit_generator.state == untouched
    assert len(theirs.track) == 322


@pytest.mark.parametrize("limit", [25])
@pytest.mark.parametrize("drives_for", [0, 60])
def test_stall_limit_truncates_without_terminating(make, limit, drives_for):
    env = make(track_seed=123, stall_limit=limit)
    patient = make(track_seed=123)
    observation, info = env.reset()
    patient.reset()
    last_new_tile, tiles = 0, info["tiles"]
    for frame in itertools.count(1):
        action = drive(observation) if frame <= drives_for else np.array([0, 0, 1], np.float32)
        observation, _, terminated, truncated, info = env.step(action)
        assert patient.step(action)[2:4] == (False, False)
        if info["tiles"] > tiles:
            last_new_tile, tiles = frame, info["tiles"]
        assert not terminated
        assert truncated == (frame - last_new_tile == limit)
        if truncated:
            break
    assert tiles > 2 or limit == 1 or drives_for == 0
    assert env.reset()[1]["frames"] == 0
    assert env.step(action)[3] == (limit == 1)


@pytest.mark.parametrize("limit", [None, 3, 1])
def test_missed_tile_is_charged_once(make, limit):
    costly, plain = (make(track_seed=123, missed_cost=cost, missed_limit=limit).unwrapped for cost in (5.0, 0.0))
    charged, counts = set(), []
    for env in (costly, plain):
        env.reset()
    for tile in (8, 12, 40, 41, 35, 20, 100):
        rewards = []
        for env in (costly, plain):
            put(env, tile)
            rewards.append(env.step(np.zeros(3))[1])
        visited = {number for number, road in enumerate(plain.road) if road.road_visited}
        touched = {other.idx for wheel in plain.car.wheels for other in wheel.tiles}
        passed = {number for end in touched for number in range(322) if 3 <= end - number <= 12} - visited - charged
        charged |= passed
        assert rewards[0] == pytest.approx(rewards[1] - 5 * min(len(passed), limit or 11))
        counts.append(len(passed))
    assert counts == [5, 2, 11, 1, 5, 6, 11]
    for env in (costly, plain):
        env.reset()
        put(env, 8)
    assert costly.step(np.zeros(3))[1] < plain.step(np.zeros(3))[1]  # a new episode charges missed tiles again


def test_random_start_is_on_the_same_road(make):
    env, fixed = make(track_seed=123, random_starts=1.0).unwrapped, make(track_seed=123).unwrapped
    env.reset(seed=3)
    fixed.reset()
    first = fixed.track.index(env.track[0])
    assert 0 < first < 322
    assert env.track == fixed.track[first:] + fixed.track[:first]
    assert [tile.idx for tile in env.road] == list(range(322))
    assert sorted(tile.idx for wheel in env.car.wheels for tile in wheel.tiles)[0] == 0
    assert tuple(env.car.hull.position) == pytest.approx(env.track[0][2:], abs=1e-2)
    put(fixed, first)
    action = np.array([0.0, 1.0, 0.0])
    for _ in range(3):
        ours, theirs = env.step(action), fixed.step(action)
    assert ours[0][9:] == pytest.approx(theirs[0][9:], abs=1e-2)  # the road ahead


def test_info_counts_tiles_and_frames_since_reset(make):
    env = make(track_seed=123)
    for _ in range(2):
        observation, info = env.reset()
        assert info == {"tiles": 2, "tiles_total": 322, "frames": 0, "lap": False, "lap_return": 0.0}
        for frame in range(1, 81):
            observation, _, _, _, info = env.step(drive(observation))
            visited = sum(tile.road_visited for tile in env.unwrapped.road)
            progress = {"tiles": visited, "tiles_total": 322, "frames": frame}
            assert info == progress | {"lap": False, "lap_return": 0.0}
        assert visited > 10


def test_simple_controller_completes_a_lap(make):
    env = make(track_seed=123, stall_limit=100, missed_cost=1000.0)  # it misses no tile
    observation, info = env.reset()
    rewards, terminated, truncated = [], False, False
    while not (terminated or truncated):
        assert not info["lap"]
        observation, reward, terminated, truncated, info = env.step(drive(observation))
        rewards.append(reward)
    assert terminated
    assert info["lap"] is True
    assert info["lap_finished"] is True
    assert info["tiles"] == info["tiles_total"] == 322
    assert info["frames"] == len(rewards) < 1100
    assert sum(rewards) == pytest.approx(1000 - 0.1 * info["frames"], abs=1e-6)
    assert info["lap_return"] == pytest.approx(sum(rewards), abs=1e-6)
    # The first frame rewards both tiles under the car.
    assert rewards[0] == pytest.approx(2000 / 322 - 0.1)


def test_car_passes_gymnasium_env_checker(make, no_window):
    check_env(make().unwrapped)
    check_env(make(track_seed=123, stall_limit=50, render_mode="rgb_array").unwrapped)


def frame_after(env, frames):
    env.reset(seed=123)
    for action in [np.array([0.01, 0.4, 0.0], np.float32)] * frames:
        env.step(action)
    return env.render()


def test_rendered_frames_match_gymnasium_plus_rays(make):
    theirs = gymnasium.make("CarRacing-v3", render_mode="rgb_array")
    plain = make(render_mode="rgb_array")
    for frames in (0, 60):
        picture = frame_after(plain, frames)
        assert picture.shape == (400, 600, 3)
        np.testing.assert_array_equal(picture, frame_after(theirs, frames))
    theirs.close()
    with_rays = make(render_mode="rgb_array", track_seed=123, draw_rays=True)
    picture_with_rays = frame_after(with_rays, 60)
    observation = with_rays.unwrapped._render("state_pixels")
    # After a second the camera holds the car at (300, 300) of 600 x 400, looking up; 16.2 points of the
    # 1000 x 800 canvas are a unit; the dots that lie on the picture are looked for.
    for index, turn, longest in [(1, -45, 30), (6, 15, 60), (7, 45, 30)]:
        assert abs(observation[index]) < 1
        length, angle = observation[index] * longest * 16.2, math.radians(turn)
        column, row = round(300 + 0.6 * length * math.sin(angle)), round(300 - 0.5 * length * math.cos(angle))
        assert picture_with_rays[row, column] == pytest.approx([220, 0, 220], abs=9)
        assert picture[row, column] != pytest.approx([220, 0, 220], abs=90)
        halfway = picture_with_rays[(row + 300) // 2 - 1 : (row + 300) // 2 + 2, (column + 300) // 2]
        assert halfway[:, 2].min() < 70  # the line's yellow on the road's grey
    assert np.any(picture_with_rays != picture)


def test_pedals_combine_gas_and_brake(make):
    env, bare = Pedals(make(track_seed=123)), make(track_seed=123)
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    for given, wanted in [((0.5, 0.75), (0.5, 0.75, 0)), ((-1, -1), (-1, 0, 1)), ((0, 0), (0, 0, 0))]:
        action = env.action(np.array(given, np.float32))
        assert action.tolist() == list(wanted)
        assert bare.action_space.contains(action)
    env.reset()
    bare.reset()
    for steering, pedal in itertools.product((-1, 0.5), (1, 0.25, -0.5)):
        mine, *_ = env.step(np.array([steering, pedal], np.float32))
        other, *_ = bare.step(np.array([steering, max(pedal, 0), max(-pedal, 0)], np.float32))
        np.testing.assert_array_equal(mine, other)
