"""Answers the cases of core/tests/oracle.rs by other means: scipy, statsmodels, and plain Python
over raw rows. Shares no code with what it checks.

Reads a JSON list of cases from stdin, each with a `kind`; writes the list of answers.
"""

import itertools
import json
import math
import sys
from collections import defaultdict

import numpy as np
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint, proportion_effectsize


# --- single formulas -------------------------------------------------------------------------


def answer_normal(case):
    return float(stats.norm.ppf(case["p"]))


def answer_wilson(case):
    low, high = proportion_confint(case["hits"], case["of"], alpha=1 - case["confidence"], method="wilson")
    return [float(low), float(high)]


def answer_mcnemar(case):
    a, b = case["a_only"], case["b_only"]
    p = float(mcnemar([[3, a], [b, 5]], exact=True).pvalue) if a + b else 1.0
    # Fagerland and others: half of the probability of what was observed is taken off each side.
    if a == b:
        mid = 1 - float(stats.binom.pmf(a, a + b, 0.5)) / 2
    else:
        mid = p - float(stats.binom.pmf(min(a, b), a + b, 0.5))
    return {"p": min(p, 1.0), "mid_p": mid}


def answer_sign_flip(case):
    values = [value for value in case["differences"] if value]
    if not values:
        return 1.0
    if len(values) == 1:
        return 1.0
    test = stats.permutation_test(
        (np.array(values),), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    return min(1.0, float(test.pvalue))


def answer_newcombe(case):
    e, f, g, h = case["both"], case["a_only"], case["b_only"], case["neither"]
    n = e + f + g + h
    ci = [
        stats.binomtest(passed, n).proportion_ci(case["confidence"], method="wilson") for passed in (e + f, e + g)
    ]
    p1, p2 = (e + f) / n, (e + g) / n
    product = (e + f) * (g + h) * (e + g) * (f + h)
    phi = 0.0
    if product:
        cross = e * h - f * g
        cross = cross if cross <= 0 else max(cross - n / 2, 0)
        phi = cross / math.sqrt(product)
    down = (p1 - ci[0].low) ** 2 - 2 * phi * (p1 - ci[0].low) * (ci[1].high - p2) + (ci[1].high - p2) ** 2
    up = (ci[0].high - p1) ** 2 - 2 * phi * (ci[0].high - p1) * (p2 - ci[1].low) + (p2 - ci[1].low) ** 2
    return [p1 - p2 - math.sqrt(max(down, 0)), p1 - p2 + math.sqrt(max(up, 0))]


def answer_correction(case):
    return {
        "holm": multipletests(case["p"], method="holm")[1].tolist(),
        "bh": multipletests(case["p"], method="fdr_bh")[1].tolist(),
    }


def answer_kappa(case):
    size = 1 + max(max(pair) for pair in case["pairs"])
    table = np.zeros((size, size))
    for one, other in case["pairs"]:
        table[one, other] += 1
    return float(cohens_kappa(table).kappa)


def answer_alpha(case):
    """By pairs of answers, as in Krippendorff's definition, and not by counts."""
    pairs, pool = [], []
    for unit in case["units"]:
        answers = [answer for answer in unit if answer is not None]
        if len(answers) < 2:
            continue
        pool += answers
        pairs += [(one, other, 1 / (len(answers) - 1)) for one, other in itertools.permutations(answers, 2)]
    observed = sum(weight for one, other, weight in pairs if one != other) / len(pool)
    expected = np.mean([one != other for one, other in itertools.permutations(pool, 2)])
    return 1 - observed / float(expected)


def answer_effect(case):
    d = np.array(case["differences"])
    return {"h": float(proportion_effectsize(case["a"], case["b"])), "d": float(d.mean() / d.std(ddof=1))}


def answer_power(case):
    """Connor's sample size, solved numerically for the difference."""
    n, psi = case["pairs"], case["discordant"]
    z = stats.norm.ppf(1 - case["level"] / 2), stats.norm.ppf(case["power"])

    def missing(d):
        return (z[0] * math.sqrt(psi) + z[1] * math.sqrt(max(psi - d * d, 0))) / d - math.sqrt(n)

    top = psi
    return float(optimize.brentq(missing, 1e-9, top, xtol=1e-14)) if missing(top) <= 0 else None


def answer_passk(case):
    n, c, k = case["samples"], case["passed"], case["k"]
    return [1 - math.comb(n - c, k) / math.comb(n, k), math.comb(c, k) / math.comb(n, k)]


# --- resampling ------------------------------------------------------------------------------

MASK = (1 << 64) - 1


def splitmix(seed):
    """Steele, Lea and Flood's generator, as published."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def indexes(seed, clusters, resamples):
    bits = splitmix(seed)
    limit = (1 << 64) % clusters

    def below():
        while True:
            product = next(bits) * clusters
            if product & MASK >= limit:
                return product >> 64

    return np.array([[below() for _ in range(clusters)] for _ in range(resamples)])


def percentile(values, confidence):
    outside = (1 - confidence) / 2
    return [float(np.quantile(values, outside)), float(np.quantile(values, 1 - outside))]


def answer_bootstrap(case):
    values = np.array(case["values"])
    drawn = indexes(case["seed"], len(values), case["resamples"])
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=case["resamples"],
        confidence_level=case["confidence"],
        method="percentile",
        rng=np.random.default_rng(case["seed"]),
    ).confidence_interval
    return {
        "same_draws": percentile(values[drawn].mean(axis=1), case["confidence"]),
        "scipy": [float(theirs.low), float(theirs.high)],
    }


# --- rows ------------------------------------------------------------------------------------


def verdict(row):
    return row["state"]["passed"] if row["state"]["kind"] == "verdict" else None


def env_of(row):
    return row["task"].split("/")[0]


def round_holds(entry):
    return entry["error"] is None and all(check["passed"] for check in entry["assertions"])


def why(entry):
    if entry["error"] == "generation":
        return "generation_error"
    if entry["error"] == "round":
        return "round_error"
    missed = {check["aspect"] for check in entry["assertions"] if not check["passed"]}
    if {"business", "visible"} <= missed:
        return "business_and_visible"
    if "business" in missed:
        return "business_only"
    if "visible" in missed:
        return "visible_only"
    return "rest"


def answer_rounds(case):
    rows = [row for row in case["rows"] if verdict(row) is not None]
    whole = checks = held = opened = with_open = 0
    classes, stages = defaultdict(int), defaultdict(int)
    joint = dict.fromkeys(["both", "business_only", "visible_only", "neither", "broken"], 0)
    for row in rows:
        broken = [entry for entry in row["rounds"] if not round_holds(entry)]
        if broken:
            classes[why(broken[0])] += 1
            stages[broken[0]["kind"]] += 1
        else:
            whole += 1
        opens = [entry for entry in row["rounds"] if entry["kind"] == "open"]
        with_open += bool(opens)
        opened += bool(opens) and all(map(round_holds, opens))
        for entry in row["rounds"]:
            checks += len(entry["assertions"])
            held += sum(check["passed"] for check in entry["assertions"]) if entry["error"] is None else 0
            business = [check["passed"] for check in entry["assertions"] if check["aspect"] == "business"]
            visible = [check["passed"] for check in entry["assertions"] if check["aspect"] == "visible"]
            if not business or not visible:
                continue
            if entry["error"] is not None:
                joint["broken"] += 1
            else:
                name = {(1, 1): "both", (1, 0): "business_only", (0, 1): "visible_only", (0, 0): "neither"}
                joint[name[all(business), all(visible)]] += 1
    return {
        "full": [whole, len(rows)],
        "assertions": [held, checks],
        "open": [opened, with_open],
        "classes": dict(classes),
        "stages": dict(stages),
        "joint": joint,
    }


def known(row, steps):
    """What is known of a row within so many steps, other budgets being as they were."""
    passed, by = verdict(row), row["state"]["ended_by"]
    if row["steps"] <= steps and (by != "steps" or row["steps"] == steps):
        return passed
    return None


def answer_compare(case):
    a = {(row["task"], row["sample"]): row for row in case["a"]}
    b = {(row["task"], row["sample"]): row for row in case["b"]}
    pairs = [(a[key], b[key]) for key in sorted(a.keys() & b.keys())]
    ran = [p for p in pairs if all(row["state"]["kind"] in ("verdict", "faulted", "unverified") for row in p)]
    pairs = [p for p in pairs if None not in map(verdict, p)]
    outcomes = [tuple(map(verdict, pair)) for pair in pairs]
    tasks = defaultdict(int)
    for (row, _), (x, y) in zip(pairs, outcomes):
        tasks[row["task"]] += x - y
    by_env = defaultdict(lambda: [0.0, 0])
    for (row, _), (x, y) in zip(pairs, outcomes):
        by_env[env_of(row)][0] += x - y
        by_env[env_of(row)][1] += 1
    sums = np.array([by_env[env] for env in sorted(by_env)])
    drawn = indexes(case["seed"], len(sums), case["resamples"])
    chosen = sums[drawn].sum(axis=1)
    # The least and the most over everything that could have been: each unknown either way.
    options = [[[x] if x is not None else [False, True] for x in map(verdict, pair)] for pair in ran]
    least = sum(min(x - y for x in xs for y in ys) for xs, ys in options) / len(ran)
    most = sum(max(x - y for x in xs for y in ys) for xs, ys in options) / len(ran)
    budgets = ("steps", "time", "budget", "tokens")

    def cut(row):
        return row["state"]["ended_by"] in budgets and not verdict(row)

    rest = [(x, y) for (one, other), (x, y) in zip(pairs, outcomes) if not cut(one) and not cut(other)]
    scores = [(one["state"]["score"], other["state"]["score"]) for one, other in pairs]
    scores = [both for both in scores if None not in both]
    curve = []
    for steps in case["steps"]:
        found = [known(row, steps) for row, _ in pairs]
        curve.append([found.count(True), found.count(False), found.count(None)])
    return {
        "table": [outcomes.count(o) for o in [(True, True), (True, False), (False, True), (False, False)]],
        "p": answer_sign_flip({"differences": list(tasks.values())}),
        "clustered": percentile(chosen[:, 0] / chosen[:, 1], case["confidence"]),
        "bounds": [least, most],
        "left_out": [rest.count(o) for o in [(True, True), (True, False), (False, True), (False, False)]],
        "score": [float(np.mean([x for x, _ in scores])), float(np.mean([y for _, y in scores]))],
        "curve": curve,
    }


def main():
    answers = [globals()["answer_" + case["kind"]](case) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
