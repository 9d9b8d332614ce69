//! `longhaul prices`: what models cost, as runs are priced.

use crate::cli::PricesArgs;
use crate::error::CliError;
use crate::output::{self, Format};
use crate::places;
use crate::prices::{self, PriceTable};
use crate::settings::Settings;

/// The table with the rows of a file before its own: the one that is named, else the settings'.
///
/// # Errors
///
/// The file cannot be read, or makes no sense.
pub(crate) fn table(given: Option<&std::path::Path>, settings: &Settings) -> Result<PriceTable, CliError> {
    let set = settings.prices.file.as_deref().map(places::expand).transpose()?;
    PriceTable::load(given.or(set.as_deref())).map_err(CliError::Strict)
}

/// Prints the table, or the rows of one model.
///
/// # Errors
///
/// A file of prices makes no sense, or no row fits.
pub fn prices(args: &PricesArgs, settings: &Settings) -> Result<(), CliError> {
    let table = table(args.prices.as_deref(), settings)?;
    let rows = table.matching(args.model.as_deref());
    if let Some(model) = args.model.as_ref().filter(|_| rows.is_empty()) {
        let (vendor, name) = model.split_once(':').unwrap_or(("", model));
        let near = table.rows().iter().map(|row| row.price.model.trim_end_matches('*'));
        let have = crate::nearest::ranked(name, near).into_iter().take(3).map(str::to_owned).collect();
        let part = if vendor.is_empty() { format!("`{model}`") } else { format!("`{name}` of {vendor}") };
        return Err(CliError::NoSuchPart { whole: "the price table".to_owned(), part, have });
    }
    match args.format {
        Format::Json => output::json(&rows.iter().map(|row| prices::as_json(row)).collect::<Vec<_>>()),
        Format::Human => {
            let mut text = prices::as_text(&rows, output::stdout_colours());
            text.push_str("\ndollars for a million tokens; the first row that fits a model counts\n");
            for source in sources(&rows) {
                text.extend(["source ", &output::escape_line(&source), "\n"]);
            }
            output::data(&text)
        }
    }
    .map_err(CliError::Output)
}

/// Where the rows are from, each once.
fn sources(rows: &[&prices::Row]) -> Vec<String> {
    let source = |row: &&prices::Row| match &row.by_way_of {
        None => row.source.clone(),
        Some(other) => format!("{}, not verified there: read by way of {other}", row.source),
    };
    let mut sources: Vec<String> = rows.iter().map(source).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}
