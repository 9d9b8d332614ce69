"""How many of the ledger's forty entries were copied without a mistake?"""

import csv
from pathlib import Path

from workbook import close_to, result, values, verdict


def verify_transcribe_ledger(traj, env_info, task_info):
    with open(Path(__file__).with_name("page.csv"), newline="", encoding="utf-8") as file:
        entries = list(csv.reader(file))[1:]
    if not result(env_info)["workbook"]["changed"]:
        return verdict(0, ["the workbook was not saved"])
    shown = values(env_info)
    score, notes, wrong = 12, ["the workbook was saved"], []
    for quarter in range(4):
        rows = range(quarter * 10, quarter * 10 + 10)
        bad = [row + 2 for row in rows if not same(entries[row], [shown.get(f"{c}{row + 2}", "") for c in "ABC"])]
        wrong += bad
        score += 22 if not bad else 2 * (10 - len(bad))
    extra = [cell for cell, text in shown.items() if text and int(cell.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")) > len(entries) + 1]
    if wrong:
        notes.append(f"wrong or missing rows: {wrong}")
    if extra:
        score = min(score, 90)
        notes.append(f"cells below the last entry: {extra[:5]}")
    notes.append(f"{len(entries) - len(wrong)} of {len(entries)} entries are right")
    return verdict(score, notes)


def same(entry, cells):
    receipt, purpose, amount = (cell.strip() for cell in cells)
    return receipt == entry[0] and purpose == entry[1] and close_to(amount, float(entry[2]))
