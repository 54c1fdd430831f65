from backend_store.shard.pace import Pace


def test_a_page_is_waited_for_until_its_bytes_are_paid() -> None:
    pace = Pace(1_000)
    assert pace.wait_s(10.0) == 0
    pace.take(500, 10.0)
    assert pace.wait_s(10.0) == 0.5 and pace.wait_s(10.5) == 0
    pace.take(2_000, 10.5)
    assert pace.wait_s(11.0) == 1.5
    assert pace.taken == 2_500


def test_what_was_not_used_is_not_saved_up() -> None:
    pace = Pace(1_000)
    pace.take(1_000, 100.0)
    pace.take(1_000, 200.0)
    assert pace.wait_s(200.0) == 1.0


def test_no_rate_is_no_wait() -> None:
    pace = Pace(0)
    pace.take(1 << 40, 0.0)
    assert pace.wait_s(0.0) == 0
