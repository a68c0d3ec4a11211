"""Whole networks in turns: a contestant that fails, or computes something else, is named."""

import numpy as np
from benchmarks import whole_networks
from benchmarks.turns import WorkerFailed


class FakeWorker:
    """Answers like a worker with these logits, whose runs take the given seconds or fail."""

    def __init__(self, logits, seconds=1.0):
        self.hello, self.logits, self.seconds = [["inference"], True], logits, seconds

    def ask(self, do, **arguments):
        if do == "save":
            np.save(arguments["path"], self.logits)
        elif self.seconds is None:
            raise WorkerFailed("it died")
        return self.seconds


def test_failures_and_wrong_logits_are_named_and_the_others_timed(tmp_path):
    right = np.ones((3, 2))
    crew = {
        "voxax": FakeWorker(right),
        "right": FakeWorker(right * (1 + 1e-6), 2.0),
        "wrong": FakeWorker(right * 2),
        "NaN": FakeWorker(right * np.nan),
        "mortal": FakeWorker(right, None),
    }
    failed = {}
    times, apart = whole_networks._measured(crew, ["inference", "none"], 3, tmp_path, failed)
    assert times == {"inference": {"voxax": 1.0, "right": 2.0}}
    assert failed["mortal"] == "it died"
    assert failed["wrong"] == "its logits differ by 1.0e+00 of the largest"
    assert set(failed) == {"wrong", "NaN", "mortal"}
    assert 0 < apart["right"] < 1e-4
    table = whole_networks.milliseconds(times, {"right": "other"}, ours="voxax")
    assert table[-1] == "| inference | 1000 ms | 2000 ms | 2.0x |"
