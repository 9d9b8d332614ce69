//! Contact sheets: the first frames of many tasks as one picture, each with its names.

use longhaul_report::Thumbnail;

use super::font;

/// The most tiles of one sheet: a picture that viewers still open.
pub(super) const PER_SHEET: usize = 40;

const COLUMNS: usize = 5;

/// Where a frame is fitted into.
const FRAME_WIDTH: usize = 384;
const FRAME_HEIGHT: usize = 216;

/// How much larger letters are drawn than the font has them.
const SCALE: usize = 2;

const MARGIN: usize = 12;
const LETTER_WIDTH: usize = (font::WIDTH as usize + 1) * SCALE;
const LINE_HEIGHT: usize = (font::HEIGHT as usize + 1) * SCALE;

/// The lines below a frame: its env, and its task on one or two.
const LABEL_LINES: usize = 3;

const PAPER: [u8; 3] = [0xf4, 0xf4, 0xf0];
const BLANK: [u8; 3] = [0xb4, 0xb4, 0xb8];
const INK: [u8; 3] = [0x1c, 0x1c, 0x22];
const FAINT: [u8; 3] = [0x60, 0x60, 0x6a];
const WHITE: [u8; 3] = [0xff, 0xff, 0xff];
const FAULT: [u8; 3] = [0x8c, 0x22, 0x22];

/// What is seen of a task.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// Its first frame.
    Frame(Thumbnail),
    /// There is none, and why in a word.
    Nothing(String),
}

/// One task of a sheet.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub(super) env: String,
    pub(super) task: String,
    pub(super) seen: Seen,
}

/// Makes a screenshot small.
///
/// # Errors
///
/// It is no PNG, or a broken one.
pub(super) fn thumbnail(png: &[u8]) -> Result<Thumbnail, png::DecodingError> {
    longhaul_report::thumbnail(png, FRAME_WIDTH, FRAME_HEIGHT)
}

/// Draws a sheet of at most [`PER_SHEET`] tiles, as a PNG.
///
/// # Errors
///
/// The encoder fails.
pub(super) fn sheet(tiles: &[Tile]) -> Result<Vec<u8>, png::EncodingError> {
    let columns = tiles.len().clamp(1, COLUMNS);
    let (cell_width, cell_height) = (FRAME_WIDTH + MARGIN, FRAME_HEIGHT + MARGIN + LABEL_LINES * LINE_HEIGHT);
    let rows = tiles.len().div_ceil(columns).max(1);
    let mut canvas = Canvas::new(MARGIN + columns * cell_width, MARGIN + rows * cell_height);
    for (index, tile) in tiles.iter().enumerate() {
        let (left, top) = (MARGIN + index % columns * cell_width, MARGIN + index / columns * cell_height);
        match &tile.seen {
            Seen::Frame(frame) => {
                canvas.fill(left, top, FRAME_WIDTH, FRAME_HEIGHT, INK);
                canvas.picture(left + (FRAME_WIDTH - frame.width) / 2, top + (FRAME_HEIGHT - frame.height) / 2, frame);
            }
            Seen::Nothing(why) => {
                canvas.fill(left, top, FRAME_WIDTH, FRAME_HEIGHT, FAULT);
                let lines = wrapped(why, 1);
                let start = left + FRAME_WIDTH.saturating_sub(lines[0].chars().count() * LETTER_WIDTH) / 2;
                canvas.text(start, top + (FRAME_HEIGHT - LINE_HEIGHT) / 2, &lines[0], WHITE);
            }
        }
        let label = top + FRAME_HEIGHT + SCALE * 2;
        let env = wrapped(&tile.env, 1).into_iter().map(|line| (line, FAINT));
        let task = wrapped(&tile.task, LABEL_LINES - 1).into_iter().map(|line| (line, INK));
        for (number, (line, colour)) in env.chain(task).enumerate() {
            canvas.text(left, label + number * LINE_HEIGHT, &line, colour);
        }
    }
    canvas.png()
}

/// A grey picture that says that none was recorded: for a screen that is not known.
///
/// # Errors
///
/// The encoder fails.
pub(crate) fn not_recorded(width: u16, height: u16) -> Result<Vec<u8>, png::EncodingError> {
    const WORDS: &str = "not recorded";
    let (width, height) = (usize::from(width), usize::from(height));
    let mut canvas = Canvas::new(width, height);
    canvas.fill(0, 0, width, height, BLANK);
    let left = width.saturating_sub(WORDS.len() * LETTER_WIDTH) / 2;
    canvas.text(left, height.saturating_sub(LINE_HEIGHT) / 2, WORDS, INK);
    canvas.png()
}

/// A text in lines as wide as a frame; what has no room is cut, and three points say so.
fn wrapped(text: &str, lines: usize) -> Vec<String> {
    let width = FRAME_WIDTH / LETTER_WIDTH;
    let mut letters: Vec<char> = text.chars().collect();
    if letters.len() > width * lines {
        letters.truncate(width * lines - 3);
        letters.extend("...".chars());
    }
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(width).map(|line| line.iter().collect()).collect()
}

/// Pixels to draw on.
struct Canvas {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, rgb: PAPER.repeat(width * height) }
    }

    /// What lies outside is not drawn.
    fn dot(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < self.width && y < self.height {
            let at = (y * self.width + x) * 3;
            self.rgb[at..at + 3].copy_from_slice(&colour);
        }
    }

    fn fill(&mut self, left: usize, top: usize, width: usize, height: usize, colour: [u8; 3]) {
        for y in top..top + height {
            for x in left..left + width {
                self.dot(x, y, colour);
            }
        }
    }

    fn picture(&mut self, left: usize, top: usize, picture: &Thumbnail) {
        for (index, pixel) in picture.rgb.chunks_exact(3).enumerate() {
            let colour = [pixel[0], pixel[1], pixel[2]];
            self.dot(left + index % picture.width, top + index / picture.width, colour);
        }
    }

    fn text(&mut self, left: usize, top: usize, text: &str, colour: [u8; 3]) {
        for (index, letter) in text.chars().enumerate() {
            for (row, bits) in font::rows(letter).into_iter().enumerate() {
                for column in 0..font::WIDTH as usize {
                    if bits >> (font::WIDTH as usize - 1 - column) & 1 == 1 {
                        let x = left + index * LETTER_WIDTH + column * SCALE;
                        self.fill(x, top + row * SCALE, SCALE, SCALE, colour);
                    }
                }
            }
        }
    }

    fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side(self.width), side(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A picture whose left half has one colour and whose right half another.
    fn halves(width: u32, height: u32, left: [u8; 3], right: [u8; 3]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        let row: Vec<u8> = (0..width).flat_map(|x| if x < width / 2 { left } else { right }).collect();
        writer.write_image_data(&row.repeat(height as usize)).unwrap();
        writer.finish().unwrap();
        bytes
    }

    fn tile(env: &str, task: &str, seen: Seen) -> Tile {
        Tile { env: env.to_owned(), task: task.to_owned(), seen }
    }

    #[test]
    fn a_sheet_has_each_frame_at_its_place_and_a_word_where_there_is_none() {
        let frame = thumbnail(&halves(1920, 1080, [1, 2, 3], [1, 2, 3])).unwrap();
        let mut tiles = vec![tile("paint_env", "one", Seen::Frame(frame)); 6];
        tiles[1] = tile("paint_env", "two", Seen::Nothing("setup_hook".to_owned()));
        let png = sheet(&tiles).unwrap();
        let mut reader = png::Decoder::new(Cursor::new(png)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.width, info.height), (12 + 5 * 396, 12 + 2 * (216 + 12 + 60)));
        let at = |x: usize, y: usize| {
            let at = (y * info.width as usize + x) * 3;
            [bytes[at], bytes[at + 1], bytes[at + 2]]
        };
        assert_eq!((at(0, 0), at(12, 12), at(12 + 396, 12)), (PAPER, [1, 2, 3], FAULT));
        assert_eq!((at(12, 12 + 288), at(12 + 396, 12 + 288)), ([1, 2, 3], PAPER), "the sixth begins a row");
        let written = |left: usize, top: usize, height: usize, colour| {
            (top..top + height).any(|y| (left..left + FRAME_WIDTH).any(|x| at(x, y) == colour))
        };
        assert!(written(12 + 396, 12, FRAME_HEIGHT, WHITE), "the fault is named");
        assert!(written(12, 12 + FRAME_HEIGHT, 24, FAINT) && written(12, 36 + FRAME_HEIGHT, 24, INK), "labels");
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_and_says_so() {
        assert_eq!(wrapped("short", 2), ["short"]);
        assert_eq!(wrapped(&"x".repeat(40), 2), ["x".repeat(32), "x".repeat(8)]);
        let cut = wrapped(&"x".repeat(90), 2);
        assert_eq!((cut.len(), cut[1].len(), cut[1].ends_with("x...")), (2, 32, true));
        assert_eq!(wrapped("", 1), [""]);
    }
}
