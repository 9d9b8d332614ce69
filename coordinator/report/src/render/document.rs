//! Findings as lines of text: for a terminal, and as a document.

use longhaul_core::text::escape_line;

use super::sheet::{Facts, Sheet, markdown as plain};
use super::tables;
use crate::findings::Findings;

/// What to look at first, and what follows.
enum Part {
    Title(String),
    Sheet(Sheet),
    Facts(String, Facts),
    Notes(&'static str, Vec<String>),
    Line(String),
}

fn parts(found: &Findings) -> Vec<Part> {
    let mut parts = vec![Part::Title("agents".to_owned()), Part::Sheet(tables::sides(found))];
    parts.push(Part::Notes("look out", tables::differing(found)));
    parts.push(Part::Title("reached".to_owned()));
    parts.push(Part::Sheet(tables::reached(found)));
    parts.push(Part::Title("used".to_owned()));
    parts.push(Part::Sheet(tables::took(found)));
    parts.push(Part::Title("ended by".to_owned()));
    parts.push(Part::Sheet(tables::ended(found)));
    let judges = tables::judges(found);
    if !judges.rows.is_empty() {
        parts.push(Part::Title("judges".to_owned()));
        parts.push(Part::Sheet(judges));
    }
    for side in &found.sides {
        parts.push(Part::Facts(format!("{}: rounds", side.label), tables::rounds(side)));
    }
    for pair in &found.comparisons.pairs {
        let title = format!("{} against {}", pair.a, pair.b);
        parts.push(Part::Facts(title, tables::pair(pair, found.options.margin)));
    }
    if found.sides.len() > 2 {
        parts.push(Part::Facts("together".to_owned(), tables::coverage(found)));
    }
    parts.push(Part::Notes("left out and odd", tables::notes(found)));
    parts.push(Part::Line(tables::made(found)));
    parts
}

/// Findings for a terminal.
#[must_use]
pub fn text(found: &Findings) -> String {
    let mut out = String::new();
    for part in parts(found) {
        match part {
            Part::Title(title) => out.extend([title.to_uppercase().as_str(), "\n"]),
            Part::Sheet(sheet) => out.extend([sheet.text().as_str(), "\n"]),
            Part::Facts(title, facts) if !facts.is_empty() => {
                out.extend([escape_line(&title).as_str(), "\n"]);
                for (name, said) in facts {
                    out.extend([format!("  {name:<20}{}", escape_line(&said)).as_str(), "\n"]);
                }
                out.push('\n');
            }
            Part::Notes(title, notes) if !notes.is_empty() => {
                out.extend([title.to_uppercase().as_str(), "\n"]);
                for note in notes {
                    out.extend(["  * ", escape_line(&note).as_str(), "\n"]);
                }
                out.push('\n');
            }
            Part::Facts(..) | Part::Notes(..) => {}
            Part::Line(line) => out.extend([line.as_str(), "\n"]),
        }
    }
    out
}

/// Findings as a document of plain text.
#[must_use]
pub fn markdown(found: &Findings) -> String {
    let mut out = "# Agents compared\n".to_owned();
    for part in parts(found) {
        match part {
            Part::Title(title) => out.extend(["\n## ", capital(&title).as_str(), "\n"]),
            Part::Sheet(sheet) => out.extend(["\n", sheet.markdown().as_str()]),
            Part::Facts(title, facts) if !facts.is_empty() => {
                out.extend(["\n## ", plain(&title).as_str(), "\n\n"]);
                for (name, said) in facts {
                    out.extend(["- ", name.trim(), ": ", plain(&said).as_str(), "\n"]);
                }
            }
            Part::Notes(title, notes) if !notes.is_empty() => {
                out.extend(["\n## ", capital(title).as_str(), "\n\n"]);
                for note in notes {
                    out.extend(["- ", plain(&note).as_str(), "\n"]);
                }
            }
            Part::Facts(..) | Part::Notes(..) => {}
            Part::Line(line) => out.extend(["\n", plain(&line).as_str(), "\n"]),
        }
    }
    out
}

fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
