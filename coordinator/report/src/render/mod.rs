//! Findings as text for a terminal, a document, a table and a page.

mod csv;
mod document;
mod figure;
mod markup;
mod page;
mod sheet;
mod tables;
mod words;

pub use csv::csv;
pub use document::{markdown, text};
pub use page::html;
