"""Is there a formula in C14 that adds up the expenses, and is the workbook saved?"""

from workbook import Workbook, close_to, fetch, result, values, verdict


def verify_total_expenses(traj, env_info, task_info):
    expected = task_info["metadata"]["expected"]
    if not result(env_info)["workbook"]["changed"]:
        return verdict(0, ["the workbook was not saved"])
    book = Workbook(fetch(env_info, task_info["metadata"]["workbook"]))
    shown = values(env_info)
    score, notes = 20, ["the workbook was saved"]
    if book.is_formula("C14"):
        score += 50
        notes.append(f"C14 holds the formula {book.text('C14')}")
    else:
        notes.append(f"C14 holds no formula but {book.text('C14')!r}")
    if close_to(shown.get("C14"), expected):
        score += 30
        notes.append("its value is right")
    else:
        notes.append(f"its value is {shown.get('C14')!r}, not {expected}")
    amounts = [540.0, 118.4, 96.75, 84.3, 27.15, 212.6, 39.9, 61.2, 18.45, 151.2, 13.8, 119.5]
    changed = [row for row, amount in enumerate(amounts, 2) if not close_to(book.text(f"C{row}"), amount)]
    if changed:
        return verdict(0, [*notes, f"amounts were changed in the rows {changed}"])
    return verdict(score, notes)
