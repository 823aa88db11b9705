"""The paper's experiments: one YAML file each, one command, the paper's number beside ours with its uncertainty."""

from rheostat.reproduce.experiment import Experiment, find_experiments, read_experiment
from rheostat.reproduce.runner import reproduce

__all__ = ["Experiment", "find_experiments", "read_experiment", "reproduce"]
