//! A table that is written a group of rows at a time.
//!
//! Columns are flat: text, truths, whole numbers of 64 bits, floats, points in time, dollars.
//! What has parts of its own (the actions of a step) is JSON in a column of text.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::time::{Millis, Timestamp};
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::super::ExportError;
use super::super::files::failed;

/// A group is written once it has so many rows, or so many bytes of text: what is held of a table.
const GROUP_ROWS: usize = 32 * 1024;
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// The most that a column of dollars with nine decimals in 64 bits holds: 18 digits.
const MOST_NANOS: u64 = 999_999_999_999_999_999;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// UTF-8.
    Text,
    /// True or false.
    Truth,
    /// A whole number, signed, of 64 bits.
    Whole,
    /// A whole number without a sign, of 64 bits.
    Unsigned,
    /// A float of 64 bits.
    Real,
    /// A point in time: milliseconds, UTC.
    Time,
    /// Dollars with nine decimals: the same digits as billionths of a dollar.
    Dollars,
}

impl Kind {
    /// The type in the words of the documents.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Truth => "boolean",
            Self::Whole => "int64",
            Self::Unsigned => "uint64",
            Self::Real => "double",
            Self::Time => "timestamp(ms, UTC)",
            Self::Dollars => "decimal(18, 9)",
        }
    }

    const fn physical(self) -> Physical {
        match self {
            Self::Text => Physical::BYTE_ARRAY,
            Self::Truth => Physical::BOOLEAN,
            Self::Whole | Self::Unsigned | Self::Time | Self::Dollars => Physical::INT64,
            Self::Real => Physical::DOUBLE,
        }
    }
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Null,
    Text(String),
    Truth(bool),
    /// The bits of a whole number, with or without a sign.
    Whole(u64),
    Real(f64),
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Digest> for Cell {
    fn from(digest: Digest) -> Self {
        Self::Text(digest.to_string())
    }
}

impl From<bool> for Cell {
    fn from(truth: bool) -> Self {
        Self::Truth(truth)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Whole(u64::from(number))
    }
}

impl From<u16> for Cell {
    fn from(number: u16) -> Self {
        Self::Whole(u64::from(number))
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Whole(u64::try_from(number).unwrap_or(u64::MAX))
    }
}

impl From<f64> for Cell {
    /// What is no number is unknown.
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Real(number) } else { Self::Null }
    }
}

impl From<Timestamp> for Cell {
    fn from(at: Timestamp) -> Self {
        Self::Whole(at.0)
    }
}

impl From<Millis> for Cell {
    fn from(length: Millis) -> Self {
        Self::Whole(length.0)
    }
}

impl From<Money> for Cell {
    fn from(amount: Money) -> Self {
        Self::Whole(amount.nanos())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// A column, and how it is found in what a row is made from.
pub(super) struct Field<R> {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Whether it may be unknown.
    pub(super) optional: bool,
    /// What it says, and in which unit.
    pub(super) about: &'static str,
    pub(super) get: fn(&R) -> Cell,
}

/// The values of a column that are not yet written; those that are null are not among them.
#[derive(Debug)]
enum Values {
    Text(Vec<ByteArray>),
    Truth(Vec<bool>),
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

#[derive(Debug)]
struct Column {
    values: Values,
    /// For each row 1, or 0 where it is null.
    present: Vec<i16>,
}

/// A file with a table.
pub(super) struct Table<R> {
    path: PathBuf,
    fields: Vec<Field<R>>,
    columns: Vec<Column>,
    rows: usize,
    bytes: usize,
    writer: SerializedFileWriter<File>,
}

impl<R> Table<R> {
    /// Begins `NAME.parquet` in the folder.
    pub(super) fn create(folder: &Path, name: &str, fields: Vec<Field<R>>) -> Result<Self, ExportError> {
        let path = folder.join(format!("{name}.parquet"));
        let file = File::create(&path).map_err(failed(&path))?;
        let wrong = |source| ExportError::Table { path: path.clone(), source };
        let schema = schema(name, &fields).map_err(wrong)?;
        let about: serde_json::Map<String, serde_json::Value> =
            fields.iter().map(|field| (field.name.to_owned(), field.about.into())).collect();
        let about = KeyValue::new("longhaul.columns".to_owned(), serde_json::Value::Object(about).to_string());
        // Snappy is what every reader has; a stronger one in C would be built with other options
        // than the store's own.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("longhaul ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![about]))
            .build();
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).map_err(wrong)?;
        let columns = fields.iter().map(|field| Column::new(field.kind)).collect();
        Ok(Self { path, fields, columns, rows: 0, bytes: 0, writer })
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: &R) -> Result<(), ExportError> {
        for (field, column) in self.fields.iter().zip(&mut self.columns) {
            self.bytes += column.push(field.name, field.kind, (field.get)(row))?;
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        let wrong = |source| ExportError::Table { path: self.path.clone(), source };
        if self.rows > 0 {
            write_group(&mut self.writer, &self.fields, &mut self.columns).map_err(wrong)?;
        }
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Writes what is left, and the end of the file.
    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        self.flush()?;
        let Self { path, writer, .. } = self;
        writer.close().map(drop).map_err(|source| ExportError::Table { path, source })
    }
}

fn schema<R>(name: &str, fields: &[Field<R>]) -> Result<Type, ParquetError> {
    let column = |field: &Field<R>| {
        let repetition = if field.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let column = Type::primitive_type_builder(field.name, field.kind.physical()).with_repetition(repetition);
        let column = match field.kind {
            Kind::Text => column.with_logical_type(Some(LogicalType::String)),
            Kind::Unsigned => column.with_logical_type(Some(LogicalType::integer(64, false))),
            Kind::Time => column.with_logical_type(Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
            Kind::Dollars => {
                column.with_logical_type(Some(LogicalType::decimal(9, 18))).with_precision(18).with_scale(9)
            }
            Kind::Truth | Kind::Whole | Kind::Real => column,
        };
        column.build().map(Arc::new)
    };
    Type::group_type_builder(name).with_fields(fields.iter().map(column).collect::<Result<_, _>>()?).build()
}

/// Writes all that is held as a group of rows, and lets go of it.
fn write_group<R>(
    writer: &mut SerializedFileWriter<File>,
    fields: &[Field<R>],
    columns: &mut [Column],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for (field, column) in fields.iter().zip(columns) {
        let Some(mut out) = group.next_column()? else { break };
        let levels = field.optional.then_some(column.present.as_slice());
        match (out.untyped(), &column.values) {
            (ColumnWriter::ByteArrayColumnWriter(out), Values::Text(values)) => {
                out.write_batch(values, levels, None)?
            }
            (ColumnWriter::BoolColumnWriter(out), Values::Truth(values)) => out.write_batch(values, levels, None)?,
            (ColumnWriter::Int64ColumnWriter(out), Values::Whole(values)) => out.write_batch(values, levels, None)?,
            (ColumnWriter::DoubleColumnWriter(out), Values::Real(values)) => out.write_batch(values, levels, None)?,
            _ => return Err(ParquetError::General(format!("column `{}` is of another type", field.name))),
        };
        out.close()?;
        *column = Column::new(field.kind);
    }
    group.close().map(drop)
}

impl Column {
    const fn new(kind: Kind) -> Self {
        let values = match kind {
            Kind::Text => Values::Text(Vec::new()),
            Kind::Truth => Values::Truth(Vec::new()),
            Kind::Whole | Kind::Unsigned | Kind::Time | Kind::Dollars => Values::Whole(Vec::new()),
            Kind::Real => Values::Real(Vec::new()),
        };
        Self { values, present: Vec::new() }
    }

    /// Adds a value; the answer is about how many bytes it takes.
    fn push(&mut self, name: &'static str, kind: Kind, cell: Cell) -> Result<usize, ExportError> {
        let taken = match (&mut self.values, cell) {
            (_, Cell::Null) => {
                self.present.push(0);
                return Ok(2);
            }
            (Values::Text(values), Cell::Text(text)) => {
                let bytes = text.len();
                values.push(ByteArray::from(text.into_bytes()));
                bytes + size_of::<ByteArray>()
            }
            (Values::Truth(values), Cell::Truth(truth)) => {
                values.push(truth);
                1
            }
            (Values::Whole(values), Cell::Whole(number)) => {
                values.push(whole(name, kind, number)?);
                8
            }
            (Values::Real(values), Cell::Real(number)) => {
                values.push(number);
                8
            }
            (values, cell) => unreachable!("invariant: column {name} is got as what it is, {values:?}, not {cell:?}"),
        };
        self.present.push(1);
        Ok(taken + 2)
    }
}

/// A whole number as the file has it; one that is too large is an error and never another number.
fn whole(column: &'static str, kind: Kind, number: u64) -> Result<i64, ExportError> {
    let most = match kind {
        Kind::Unsigned => return Ok(number.cast_signed()),
        Kind::Dollars => MOST_NANOS,
        _ => i64::MAX.unsigned_abs(),
    };
    if number > most {
        return Err(ExportError::Figure { column, value: number });
    }
    Ok(number.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is held of a table is bounded, however many rows it gets.
    #[test]
    fn a_group_is_written_once_it_has_so_many_rows_or_bytes() {
        use parquet::file::reader::{FileReader, SerializedFileReader};

        let folder = tempfile::tempdir().unwrap();
        let field = Field { name: "x", kind: Kind::Text, optional: true, about: "", get: |row: &Cell| row.clone() };
        let mut table = Table::create(folder.path(), "t", vec![field]).unwrap();
        for _ in 0..2 * GROUP_ROWS {
            table.push(&Cell::Null).unwrap();
        }
        for _ in 0..3 {
            table.push(&Cell::Text("x".repeat(GROUP_BYTES))).unwrap();
        }
        assert_eq!(table.rows, 0, "nothing of it is held any more");
        table.push(&Cell::Null).unwrap();
        table.finish().unwrap();
        let file = File::open(folder.path().join("t.parquet")).unwrap();
        let groups: Vec<i64> = SerializedFileReader::new(file)
            .unwrap()
            .metadata()
            .row_groups()
            .iter()
            .map(parquet::file::metadata::RowGroupMetaData::num_rows)
            .collect();
        let whole = i64::try_from(GROUP_ROWS).unwrap();
        assert_eq!(groups, [whole, whole, 1, 1, 1, 1]);
    }

    #[test]
    fn a_figure_that_does_not_fit_is_an_error_and_never_another_figure() {
        assert_eq!(whole("seed", Kind::Unsigned, u64::MAX).unwrap(), -1);
        assert_eq!(whole("cost_dollars", Kind::Dollars, MOST_NANOS).unwrap(), MOST_NANOS.cast_signed());
        for (kind, number) in [(Kind::Dollars, MOST_NANOS + 1), (Kind::Whole, u64::MAX), (Kind::Time, u64::MAX)] {
            assert!(matches!(whole("x", kind, number), Err(ExportError::Figure { column: "x", .. })));
        }
        assert_eq!(Cell::from(f64::NAN), Cell::Null);
    }
}
