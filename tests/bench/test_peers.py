"""Letters against plain sockets: the benchmark runs, in small, and its page says what it should."""

import asyncio
import json

import pytest
from benchmarks import distance, peers
from benchmarks.distance import Distance
from benchmarks.peers import Memory, Speed


def test_ratios_and_cells_on_paper():
    speed = Speed(2_000_000, written=[0.1, 0.1, 0.1], linked=[0.2, 0.6, 0.4], plain=[0.1, 0.2, 0.4])
    assert speed.ratio == 2
    assert peers.cells(speed)[1] == ["link", "0.400", "5", "2.00"]
    memory = Memory("dfedavg", model=10, state=20, working=10, peaks=[155, 165, 150], idle=100)
    assert memory.models == [3.5, 4.5, 3.0]
    assert "from 1.00 to 3.00" in peers.notes(speed, "command")[0]
    assert "| dfedavg | 2.00 | 5.50 | 3.50 | 3.00 | 4.50 | 1.00 |" in peers.markdown(
        peers.MEMORY_HEADS, peers.memory_cells([memory])
    )


def test_a_small_model_goes_both_ways_and_the_page_is_written(tmp_path, capsys):
    page = tmp_path / "peers.md"
    peers.main(["--model", "softmax", "--repeats", "2", "--methods", "", "--out", str(page)])
    assert "| plain TLS |" in page.read_text()
    assert "times as long as plain TLS sockets" in page.read_text()
    assert "link" in capsys.readouterr().out


def test_what_a_method_asks_for():
    def models(method):
        training = peers.prepare(peers.experiment(method, 3, "softmax", 1)).training
        return [each / training.model.initial.nbytes for each in peers.state_of(training)]

    assert models("dfedavg") == [1, 1]  # its model, and the one that its steps change
    assert models("sgp") == pytest.approx([1, 5], rel=0.01)  # and two edges out and in, beside some weights


def test_a_peer_says_the_most_memory_that_it_held():
    assert min(peers.peaks_of("dfedavg", "softmax")) > 10 << 20
    assert json.loads(json.dumps({"peak": peers.most_memory()}))["peak"] > 0


def test_distances_on_paper():
    found = Distance(3, 1_000_000, plain=[0.4, 0.5, 0.6], linked=[0.5, 0.5, 0.5], first=1.25)
    assert found.cells() == ["3", "0.500", "0.500", "1.250", "6", "6", "100 %"]
    assert "Letters of 1.0 MB over 100 ms there and back and 125 MB/s" in distance.note([found])


@pytest.mark.slow
def test_nothing_arrives_before_its_time_over_a_distance():
    found = asyncio.run(distance.measure("softmax", repeats=1, neighbours=1))
    assert min(found.plain + found.linked) >= distance.ROUND_TRIP
