#!/bin/bash
# The workshop's books, as workbooks in the documents of the desktop's user.
set -euo pipefail
. /workspace/scripts/desktop.sh
pin_fonts
install -d -o ga -g ga /home/ga/Documents /home/ga/Documents/books
for table in /workspace/data/*.csv; do
    su - ga -c "ssconvert --import-encoding=UTF-8 '$table' '/home/ga/Documents/books/$(basename "$table" .csv).gnumeric'"
done
ls -l /home/ga/Documents/books
