//! Tables and lists of facts, the same for a terminal, a document and a page.

use longhaul_core::text::escape_line;

use super::markup::Markup;

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sheet {
    /// The heads of its columns; the first names the row.
    pub(super) head: Vec<&'static str>,
    /// Its rows, as wide as the head.
    pub(super) rows: Vec<Vec<String>>,
}

/// Something said of something, line by line.
pub(super) type Facts = Vec<(&'static str, String)>;

impl Sheet {
    /// A table with these heads.
    pub(super) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// The same table without the columns in which no row says anything.
    pub(super) fn without_empty(self) -> Self {
        let says = |column: &usize| self.rows.iter().any(|row| row[*column] != super::words::NOTHING);
        let kept: Vec<usize> = (0..self.head.len()).filter(|column| *column == 0 || says(column)).collect();
        let row = |row: &Vec<String>| kept.iter().map(|column| row[*column].clone()).collect();
        Self { head: kept.iter().map(|column| self.head[*column]).collect(), rows: self.rows.iter().map(row).collect() }
    }

    /// For a terminal: columns as wide as they need, numbers to the right.
    pub(super) fn text(&self) -> String {
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| escape_line(cell)).collect()).collect();
        let head: Vec<String> = self.head.iter().map(|head| (*head).to_owned()).collect();
        let width = |column: usize| {
            std::iter::once(&head).chain(&rows).map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut out = String::new();
        for row in std::iter::once(&head).chain(&rows) {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let gap = " ".repeat(widths[column] - cell.chars().count());
                if column == 0 {
                    line.extend([cell.as_str(), &gap]);
                } else {
                    line.extend(["  ", gap.as_str(), cell]);
                }
            }
            out.extend([line.trim_end(), "\n"]);
        }
        out
    }

    /// For a document.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        let mut out = line(&mut self.head.iter().map(|head| (*head).to_owned()));
        out.push_str(&line(
            &mut (0..self.head.len()).map(|column| if column == 0 { "---".to_owned() } else { "---:".to_owned() }),
        ));
        for row in &self.rows {
            out.push_str(&line(&mut row.iter().map(|cell| markdown(cell))));
        }
        out
    }

    /// For a page; `name` draws the first cell of a row by its number.
    pub(super) fn html(&self, name: impl Fn(usize, &str) -> Markup) -> Markup {
        let class = |column: usize| if column == 0 { "name" } else { "n" };
        let head = self.head.iter().enumerate();
        let head =
            head.map(|(column, head)| Markup::with_text("th", &[("class", class(column)), ("scope", "col")], head));
        let rows = self.rows.iter().enumerate().map(|(number, row)| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let inner = if column == 0 { name(number, cell) } else { Markup::text(cell) };
                Markup::tag("td", &[("class", class(column))], [inner])
            });
            Markup::tag("tr", &[], cells)
        });
        let head = Markup::tag("thead", &[], [Markup::tag("tr", &[], head)]);
        let table = Markup::tag("table", &[], [head, Markup::tag("tbody", &[], rows)]);
        Markup::tag("div", &[("class", "wide")], [table])
    }
}

/// Text of any origin inside a document: nothing in it is taken for a sign of the document.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in escape_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' | '$' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    // An address would become a link by itself.
    out.replace("://", ":\u{200b}//")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new(&["agent", "passed", "dollars"]);
        sheet.rows.push(vec!["<b>a|b</b>\u{1b}".to_owned(), "6".to_owned(), "-".to_owned()]);
        sheet.rows.push(vec!["b".to_owned(), "12".to_owned(), "-".to_owned()]);
        sheet
    }

    #[test]
    fn a_table_lines_up_and_leaves_out_what_says_nothing() {
        let text = sheet().without_empty().text();
        assert_eq!(text, "agent             passed\n<b>a|b</b>\\u{1b}       6\nb                     12\n");
    }

    #[test]
    fn no_cell_of_a_document_breaks_its_table_or_is_taken_for_markup() {
        let document = sheet().markdown();
        assert!(document.contains("| &lt;b&gt;a\\|b&lt;/b&gt;\\\\u{1b} | 6 | - |"), "{document}");
        assert_eq!(markdown("see http://x.y [z](w)"), "see http:\u{200b}//x.y \\[z\\](w)");
        let page = sheet().html(|_, name| Markup::text(name)).into_string();
        assert!(page.contains("&lt;b&gt;a|b&lt;/b&gt;") && !page.contains("<b>"), "{page}");
    }
}
