"""Budgets that mean time: certificates of this machine, and the budget that holds a target on it."""

from rheostat.certify.certificate import Certificate, Fit, read_certificates
from rheostat.certify.certifying import certify
from rheostat.certify.conditions import Conditions
from rheostat.certify.latency import LatencyModel, Sample, fit_latency
from rheostat.certify.targets import Promise, Target, budget_for, parse_target

__all__ = [
    "Certificate",
    "Conditions",
    "Fit",
    "LatencyModel",
    "Promise",
    "Sample",
    "Target",
    "budget_for",
    "certify",
    "fit_latency",
    "parse_target",
    "read_certificates",
]
