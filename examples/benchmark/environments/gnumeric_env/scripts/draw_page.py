#!/usr/bin/env python3
"""Draws the page of a paper ledger from a table: draw_page.py TABLE.csv PICTURE.png"""

import csv
import sys

from PIL import Image, ImageDraw, ImageFont

WIDTH, LINE, TOP = 780, 24, 46
COLUMNS = (24, 190, 640)
INK, RULE, PAPER = (28, 34, 92), (196, 208, 220), (250, 246, 232)


def main(table, picture):
    font = ImageFont.truetype("/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf", 17)
    with open(table, newline="", encoding="utf-8") as file:
        header, *entries = csv.reader(file)
    page = Image.new("RGB", (WIDTH, TOP + LINE * len(entries) + 12), PAPER)
    draw = ImageDraw.Draw(page)
    for line, fields in enumerate([header, *entries]):
        top = 14 + LINE * line + (8 if line else 0)
        for left, text in zip(COLUMNS, fields):
            draw.text((left, top), text, font=font, fill=INK)
        draw.line([(12, top + LINE - 2), (WIDTH - 12, top + LINE - 2)], fill=RULE)
    page.save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
