//! Pictures as models get them: scaled down, cut, and as base64.

use std::io::Cursor;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use longhaul_core::agent::ImageSize;

use super::place::Region;
use crate::screen::write_png;

/// What kind of picture they are.
pub(crate) const PNG: &str = "image/png";

/// The base64 of a PNG.
pub(crate) type Picture = Arc<str>;

/// What of a screenshot an agent wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The size of the whole picture; as it is if absent.
    pub(crate) size: Option<ImageSize>,
    /// Parts, each scaled to the size of the whole as far as its form allows.
    pub(crate) parts: Vec<Region>,
}

/// What it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pictures {
    /// The whole.
    pub(crate) whole: Picture,
    /// The parts, in order; none where one could not be made.
    pub(crate) parts: Vec<Option<Picture>>,
}

/// Why a screenshot cannot be scaled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PictureError {
    /// It is no PNG.
    #[error("a screenshot cannot be read")]
    Decode(#[from] png::DecodingError),
    /// A smaller one cannot be made of it.
    #[error("a scaled screenshot cannot be written")]
    Encode(#[from] png::EncodingError),
    /// Its pixels are of another kind than our own captures.
    #[error("a screenshot has pixels of another kind")]
    Kind,
}

/// Pixels, three bytes each, without gaps.
#[derive(Debug)]
struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// Makes what is wished for of a screenshot. It takes tens of milliseconds: not for a thread
/// that others wait on.
pub(crate) fn prepare(png: &[u8], wish: &Wish) -> Result<Pictures, PictureError> {
    let as_it_is = wish.size.is_none_or(|size| header_size(png) == Some(size));
    if as_it_is && wish.parts.is_empty() {
        return Ok(Pictures { whole: encode(png), parts: Vec::new() });
    }
    let pixels = decode(png)?;
    let size = wish.size.unwrap_or_else(|| pixels.size());
    let whole =
        if as_it_is { encode(png) } else { encode(&write(&scale(&pixels, size.width.into(), size.height.into()))?) };
    let part = |region: &Region| {
        let cut = cut(&pixels, *region)?;
        let (width, height) = grown(cut.size(), size);
        write(&scale(&cut, width, height)).ok().map(|png| encode(&png))
    };
    Ok(Pictures { whole, parts: wish.parts.iter().map(part).collect() })
}

/// A PNG as base64.
pub(crate) fn encode(png: &[u8]) -> Picture {
    BASE64_STANDARD.encode(png).into()
}

/// The size that a PNG's header names.
fn header_size(png: &[u8]) -> Option<ImageSize> {
    let side = |at: usize| u32::from_be_bytes(png.get(at..at + 4)?.try_into().ok()?).try_into().ok();
    png.starts_with(b"\x89PNG").then_some(())?;
    Some(ImageSize { width: side(16)?, height: side(20)? })
}

fn decode(png: &[u8]) -> Result<Pixels, PictureError> {
    let mut reader = png::Decoder::new(Cursor::new(png)).read_info()?;
    let mut rgb = vec![0; reader.output_buffer_size().ok_or(PictureError::Kind)?];
    let info = reader.next_frame(&mut rgb)?;
    if (info.color_type, info.bit_depth) != (png::ColorType::Rgb, png::BitDepth::Eight) {
        return Err(PictureError::Kind);
    }
    rgb.truncate(info.buffer_size());
    Ok(Pixels { width: info.width as usize, height: info.height as usize, rgb })
}

fn write(pixels: &Pixels) -> Result<Vec<u8>, PictureError> {
    let side = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(256 * 1024);
    write_png(&mut out, &pixels.rgb, side(pixels.width), side(pixels.height))?;
    Ok(out)
}

impl Pixels {
    fn size(&self) -> ImageSize {
        let side = |value: usize| u16::try_from(value).unwrap_or(u16::MAX);
        ImageSize { width: side(self.width), height: side(self.height) }
    }
}

/// A part of a picture; none if it is beyond it.
fn cut(pixels: &Pixels, region: Region) -> Option<Pixels> {
    let (left, top) = (usize::from(region.left), usize::from(region.top));
    let width = usize::from(region.width).min(pixels.width.checked_sub(left)?);
    let height = usize::from(region.height).min(pixels.height.checked_sub(top)?);
    if width == 0 || height == 0 {
        return None;
    }
    let mut rgb = Vec::with_capacity(width * height * 3);
    for row in pixels.rgb.chunks_exact(pixels.width * 3).skip(top).take(height) {
        rgb.extend_from_slice(row.get(left * 3..(left + width) * 3)?);
    }
    Some(Pixels { width, height, rgb })
}

/// The largest size of a part's form within another size.
fn grown(part: ImageSize, within: ImageSize) -> (usize, usize) {
    let (width, height) = (usize::from(part.width).max(1), usize::from(part.height).max(1));
    let (most_wide, most_high) = (usize::from(within.width).max(1), usize::from(within.height).max(1));
    if width * most_high >= height * most_wide {
        (most_wide, (height * most_wide / width).max(1))
    } else {
        ((width * most_high / height).max(1), most_high)
    }
}

/// One side's pixels, and the weight of each, for every pixel of the other side: the average
/// over its area where it shrinks, the nearest where it grows.
fn weights(from: usize, to: usize) -> Vec<(usize, Vec<f32>)> {
    #[expect(clippy::cast_precision_loss, reason = "sides of screens are exact")]
    let step = from as f64 / to as f64;
    (0..to)
        .map(|index| {
            #[expect(clippy::cast_precision_loss, reason = "sides of screens are exact")]
            let (start, end) = (index as f64 * step, (index + 1) as f64 * step);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the side")]
            let (first, last) = (start.floor() as usize, (end.ceil() as usize).clamp(1, from));
            let first = first.min(from - 1);
            if step <= 1.0 {
                return (first, vec![1.0]);
            }
            let weights = (first..last.max(first + 1)).map(|pixel| {
                #[expect(clippy::cast_precision_loss, reason = "sides of screens are exact")]
                let pixel = pixel as f64;
                #[expect(clippy::cast_possible_truncation, reason = "a fraction")]
                let weight = ((end.min(pixel + 1.0) - start.max(pixel)).max(0.0) / step) as f32;
                weight
            });
            (first, weights.collect())
        })
        .collect()
}

/// Scales a picture: first its rows, then its columns.
fn scale(pixels: &Pixels, width: usize, height: usize) -> Pixels {
    let across = weights(pixels.width, width);
    let mut narrow = vec![0_f32; width * pixels.height * 3];
    for (row, out) in pixels.rgb.chunks_exact(pixels.width * 3).zip(narrow.chunks_exact_mut(width * 3)) {
        for ((first, weights), target) in across.iter().zip(out.chunks_exact_mut(3)) {
            for (pixel, weight) in row[first * 3..].chunks_exact(3).zip(weights) {
                for (sum, value) in target.iter_mut().zip(pixel) {
                    *sum += f32::from(*value) * weight;
                }
            }
        }
    }
    let mut rgb = Vec::with_capacity(width * height * 3);
    let mut sums = vec![0_f32; width * 3];
    for (first, weights) in weights(pixels.height, height) {
        sums.fill(0.0);
        for (row, weight) in narrow[first * width * 3..].chunks_exact(width * 3).zip(&weights) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value * weight;
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an average of bytes")]
        rgb.extend(sums.iter().map(|sum| (sum + 0.5).clamp(0.0, 255.0) as u8));
    }
    Pixels { width, height, rgb }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A PNG of a size, of one color but for one white pixel.
    pub(crate) fn png_with_dot(width: u16, height: u16, dot: (u16, u16)) -> Vec<u8> {
        let (w, h) = (usize::from(width), usize::from(height));
        let mut rgb = vec![40_u8; w * h * 3];
        let at = (usize::from(dot.1) * w + usize::from(dot.0)) * 3;
        rgb[at..at + 3].fill(255);
        write(&Pixels { width: w, height: h, rgb }).unwrap()
    }

    fn read(picture: &Picture) -> Pixels {
        decode(&BASE64_STANDARD.decode(picture.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_picture_of_the_right_size_is_passed_on_byte_by_byte() {
        let png = png_with_dot(8, 6, (0, 0));
        let size = Some(ImageSize { width: 8, height: 6 });
        for wish in [Wish::default(), Wish { size, ..Wish::default() }] {
            assert_eq!(prepare(&png, &wish).unwrap().whole, encode(&png));
        }
        // What is not looked into need not be a PNG.
        assert_eq!(&*prepare(b"abc", &Wish::default()).unwrap().whole, "YWJj");
        assert!(prepare(b"abc", &Wish { size, ..Wish::default() }).is_err());
    }

    #[test]
    fn scaling_down_averages_areas() {
        let png = png_with_dot(4, 4, (0, 0));
        let wish = Wish { size: Some(ImageSize { width: 2, height: 2 }), ..Wish::default() };
        let small = read(&prepare(&png, &wish).unwrap().whole);
        assert_eq!((small.width, small.height), (2, 2));
        // A quarter white and three quarters of 40.
        assert_eq!(&small.rgb[..3], [94, 94, 94]);
        assert!(small.rgb[3..].iter().all(|value| *value == 40));
    }

    #[test]
    fn one_color_stays_that_color_at_any_size() {
        let png = png_with_dot(19, 11, (18, 10));
        for (width, height) in [(19, 10), (7, 3), (1, 1), (13, 11)] {
            let wish = Wish { size: Some(ImageSize { width, height }), ..Wish::default() };
            let small = read(&prepare(&png, &wish).unwrap().whole);
            assert_eq!(small.rgb.len(), usize::from(width) * usize::from(height) * 3);
            if width > 1 {
                assert_eq!(small.rgb[0], 40, "{width}x{height}");
            }
        }
    }

    #[test]
    fn parts_are_cut_and_grown_to_the_size_of_the_whole() {
        let png = png_with_dot(8, 6, (3, 2));
        let parts =
            vec![Region { left: 2, top: 2, width: 4, height: 2 }, Region { left: 9, top: 0, width: 4, height: 2 }];
        let pictures = prepare(&png, &Wish { size: None, parts }).unwrap();
        assert_eq!(pictures.whole, encode(&png));
        let part = read(pictures.parts[0].as_ref().unwrap());
        assert_eq!((part.width, part.height), (8, 4));
        assert_eq!((part.rgb[0], part.rgb[2 * 3], part.rgb[4 * 3]), (40, 255, 40));
        assert_eq!(pictures.parts[1], None, "beyond the picture");
    }
}
