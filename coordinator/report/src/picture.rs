//! Screenshots made small, for sheets and pages that hold many of them.

use std::io::Cursor;

/// A picture made small: three bytes for each pixel, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thumbnail {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// The pixels.
    pub rgb: Vec<u8>,
    /// Whether all of it has one colour: nothing was drawn on it.
    pub plain: bool,
}

impl Thumbnail {
    /// It as a PNG.
    ///
    /// # Errors
    ///
    /// The encoder fails.
    pub fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side(self.width), side(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Balanced);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(bytes)
    }
}

/// Makes a picture small enough for a place of that size, in its own form; nothing is blown up.
///
/// # Errors
///
/// It is no PNG, or a broken one.
pub fn thumbnail(png: &[u8], most_wide: usize, most_high: usize) -> Result<Thumbnail, png::DecodingError> {
    let mut decoder = png::Decoder::new(Cursor::new(png));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info()?;
    let mut bytes = vec![0; reader.output_buffer_size().ok_or(png::DecodingError::LimitsExceeded)?];
    let info = reader.next_frame(&mut bytes)?;
    let (width, height, samples) = (info.width as usize, info.height as usize, info.color_type.samples());
    let pixel = |x: usize, y: usize| {
        let at = y * info.line_size + x * samples;
        if samples < 3 { [bytes[at]; 3] } else { [bytes[at], bytes[at + 1], bytes[at + 2]] }
    };
    let first = pixel(0, 0);
    let plain = (0..height).all(|y| (0..width).all(|x| pixel(x, y) == first));
    let (to_width, to_height) = fitted((width, height), (most_wide, most_high));
    let mut rgb = Vec::with_capacity(to_width * to_height * 3);
    for y in 0..to_height {
        for x in 0..to_width {
            rgb.extend(mean(&pixel, span(x, width, to_width), span(y, height, to_height)));
        }
    }
    Ok(Thumbnail { width: to_width, height: to_height, rgb, plain })
}

/// The largest size of the same form that a place has room for; never larger than it is.
fn fitted((width, height): (usize, usize), (most_wide, most_high): (usize, usize)) -> (usize, usize) {
    let by_width = (most_wide, height * most_wide / width.max(1));
    let by_height = (width * most_high / height.max(1), most_high);
    let (width, height) = [(width, height), by_width, by_height]
        .into_iter()
        .find(|(width, height)| *width <= most_wide && *height <= most_high)
        .unwrap_or((1, 1));
    (width.max(1), height.max(1))
}

/// The pixels that become pixel `at` when `from` are made `to`.
fn span(at: usize, from: usize, to: usize) -> std::ops::Range<usize> {
    let start = at * from / to;
    start..((at + 1) * from / to).max(start + 1)
}

fn mean(
    pixel: &impl Fn(usize, usize) -> [u8; 3],
    across: std::ops::Range<usize>,
    down: std::ops::Range<usize>,
) -> [u8; 3] {
    let mut sums = [0_usize; 3];
    let count = across.len() * down.len();
    for y in down {
        for x in across.clone() {
            for (sum, value) in sums.iter_mut().zip(pixel(x, y)) {
                *sum += usize::from(value);
            }
        }
    }
    sums.map(|sum| u8::try_from(sum / count.max(1)).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture whose left half has one colour and whose right half another.
    fn halves(width: usize, height: usize, left: [u8; 3], right: [u8; 3]) -> Vec<u8> {
        let row: Vec<u8> = (0..width).flat_map(|x| if x < width / 2 { left } else { right }).collect();
        Thumbnail { width, height, rgb: row.repeat(height), plain: false }.png().unwrap()
    }

    #[test]
    fn a_frame_keeps_its_form_and_its_colours_and_is_told_from_an_empty_one() {
        let (red, blue) = ([200, 0, 0], [0, 0, 200]);
        let small = thumbnail(&halves(1920, 1080, red, blue), 384, 216).unwrap();
        assert_eq!((small.width, small.height, small.plain), (384, 216, false));
        assert_eq!((&small.rgb[..3], &small.rgb[383 * 3..384 * 3]), (&red[..], &blue[..]));
        let square = thumbnail(&halves(800, 600, red, red), 384, 216).unwrap();
        assert_eq!((square.width, square.height, square.plain), (288, 216, true));
        let tiny = thumbnail(&halves(4, 2, red, blue), 384, 216).unwrap();
        assert_eq!((tiny.width, tiny.height), (4, 2), "nothing is blown up");
        assert!(thumbnail(b"no picture", 384, 216).is_err());
    }
}
