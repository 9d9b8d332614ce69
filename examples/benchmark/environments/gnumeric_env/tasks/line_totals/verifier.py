"""Does each order's total follow from its quantity and price?"""

from workbook import Workbook, close_to, fetch, result, values, verdict

INPUTS = {
    "B2": 4, "B3": 2, "B4": 2, "B5": 3, "B6": 24, "B7": 6,
    "C2": 14.9, "C3": 18.9, "C4": 42.5, "C5": 6.75, "C6": 5.5, "C7": 3.25,
}


def verify_line_totals(traj, env_info, task_info):
    expected = task_info["metadata"]["expected"]
    if not result(env_info)["workbook"]["changed"]:
        return verdict(0, ["the workbook was not saved"])
    book = Workbook(fetch(env_info, task_info["metadata"]["workbook"]))
    shown = values(env_info)
    changed = [cell for cell, value in INPUTS.items() if not close_to(book.text(cell), value)]
    if changed:
        return verdict(0, [f"quantities or prices were changed: {', '.join(changed)}"])
    formulas = sum(book.is_formula(cell) for cell in expected)
    right = sum(close_to(shown.get(cell), value) for cell, value in expected.items())
    score = 20 + (40 * formulas) // len(expected) + (40 * right) // len(expected)
    notes = ["the workbook was saved", f"{formulas} of {len(expected)} are formulas", f"{right} of {len(expected)} are right"]
    return verdict(score, notes)
