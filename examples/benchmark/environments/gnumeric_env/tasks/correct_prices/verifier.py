"""Are the three wrong prices right now, and all others as they were?"""

from workbook import Workbook, close_to, fetch, result, verdict

BEFORE = {
    "B2": 24.9, "B3": 5.5, "B4": 19.8, "B5": 16.2, "B6": 8.4,
    "B7": 45.2, "B8": 0.75, "B9": 7.65, "B10": 21.3, "B11": 14.95,
}


def verify_correct_prices(traj, env_info, task_info):
    expected = task_info["metadata"]["expected"]
    if not result(env_info)["workbook"]["changed"]:
        return verdict(0, ["the workbook was not saved"])
    book = Workbook(fetch(env_info, task_info["metadata"]["workbook"]))
    score, notes = 25, ["the workbook was saved"]
    for cell, price in expected.items():
        if close_to(book.text(cell), price):
            score += 25
            notes.append(f"{cell} is right")
        else:
            notes.append(f"{cell} is {book.text(cell)!r}, not {price}")
    others = [cell for cell, price in BEFORE.items() if cell not in expected and not close_to(book.text(cell), price)]
    if others:
        return verdict(0, [*notes, f"other prices were changed: {', '.join(others)}"])
    return verdict(score, notes)
