//! Pixels: from the server's form to a PNG, with the pointer drawn in.
//!
//! Pure, and hot: a frame of 1920x1080 passes through here at every step.

use std::io::Write;

/// The picture of the pointer, and where on the screen it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Where the picture's left edge is.
    pub(super) left: i32,
    /// Where the picture's upper edge is.
    pub(super) top: i32,
    /// The picture's pixels across.
    pub(super) width: u16,
    /// The picture's pixels down.
    pub(super) height: u16,
    /// Pixels as 0xAARRGGBB, already multiplied with their alpha.
    pub(super) argb: Vec<u32>,
}

/// Encodes a frame of BGRX pixels as a PNG.
pub(super) fn encode(
    bgrx: &[u8],
    width: u16,
    height: u16,
    pointer: Option<&Pointer>,
) -> Result<Vec<u8>, png::EncodingError> {
    let mut rgb = vec![0; usize::from(width) * usize::from(height) * 3];
    to_rgb(bgrx, &mut rgb);
    if let Some(pointer) = pointer {
        draw(pointer, &mut rgb, usize::from(width), usize::from(height));
    }
    let mut out = Vec::with_capacity(512 * 1024);
    write_png(&mut out, &rgb, width.into(), height.into())?;
    Ok(out)
}

/// Writes pixels, three bytes each, as a PNG.
///
/// The setting is the choice of a measurement (docs/performance.md): on screens of
/// programs the lowest level of the usual compression with the plain `Up` filter takes half
/// the time of the encoder's own `Fast` setting, which tries five filters for each row, and
/// half the bytes; the next level takes three times as long.
pub(crate) fn write_png(out: &mut impl Write, rgb: &[u8], width: u32, height: u32) -> Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_deflate_compression(png::DeflateCompression::Level(1));
    encoder.set_filter(png::Filter::Up);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()
}

/// BGRX to RGB. As plain as this, the compiler makes better code of it than of words.
fn to_rgb(bgrx: &[u8], rgb: &mut [u8]) {
    for (source, target) in bgrx.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        target[0] = source[2];
        target[1] = source[1];
        target[2] = source[0];
    }
}

/// Draws the pointer over the frame, cut at the screen's edges.
fn draw(pointer: &Pointer, rgb: &mut [u8], width: usize, height: usize) {
    let rows = pointer.argb.chunks_exact(usize::from(pointer.width).max(1));
    for (row, y) in rows.zip(pointer.top..) {
        let Some(y) = usize::try_from(y).ok().filter(|y| *y < height) else { continue };
        for (argb, x) in row.iter().zip(pointer.left..) {
            let Some(x) = usize::try_from(x).ok().filter(|x| *x < width) else { continue };
            let [alpha, color @ ..] = argb.to_be_bytes();
            let start = (y * width + x) * 3;
            for (below, above) in rgb[start..start + 3].iter_mut().zip(color) {
                let through = u16::from(*below) * u16::from(255 - alpha) / 255;
                *below = u8::try_from(through + u16::from(above)).unwrap_or(u8::MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_keeps_its_colors() {
        let bgrx: Vec<u8> = (0..13_u8).flat_map(|n| [n, n + 50, n + 100, 255]).collect();
        let mut rgb = vec![0; 13 * 3];
        to_rgb(&bgrx, &mut rgb);
        assert_eq!(rgb, (0..13_u8).flat_map(|n| [n + 100, n + 50, n]).collect::<Vec<_>>());
    }

    #[test]
    fn the_pointer_is_blended_and_cut_at_the_edges() {
        let mut rgb = vec![100; 2 * 2 * 3];
        let pointer = Pointer {
            left: -1,
            top: 1,
            width: 2,
            height: 2,
            argb: vec![0xFFFF_FFFF, 0xFF01_0203, 0xFFFF_FFFF, 0xFFFF_FFFF],
        };
        draw(&pointer, &mut rgb, 2, 2);
        assert_eq!(rgb, [100, 100, 100, 100, 100, 100, 1, 2, 3, 100, 100, 100]);
        let mut half = vec![100; 3];
        let pointer = Pointer { left: 0, top: 0, width: 1, height: 1, argb: vec![0x8000_0080] };
        draw(&pointer, &mut half, 1, 1);
        assert_eq!(half, [49, 49, 177]);
    }

    #[test]
    fn a_png_reads_back_as_it_was() {
        let bgrx: Vec<u8> = (0..6_u8).flat_map(|n| [n, 2 * n, 3 * n, 0]).collect();
        let png = encode(&bgrx, 3, 2, None).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (3, 2, png::ColorType::Rgb));
        assert_eq!(pixels, (0..6_u8).flat_map(|n| [3 * n, 2 * n, n]).collect::<Vec<_>>());
    }
}
