//! Whether a frame shows what a recorded one shows: the comparison of [`longhaul_core::screen`],
//! over PNGs.

use std::io::Cursor;

use longhaul_core::screen::{Area, Likeness, Picture, compare};

use crate::screen::Frame;

/// The most areas that are named.
const MOST_NAMED: usize = 5;

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same {
        masked: u64,
    },
    /// Where, in words.
    Differs(String),
}

/// Compares two frames, where nobody waits on the thread.
pub(super) async fn frames(recorded: &Frame, found: &Frame, masks: Vec<Area>) -> Verdict {
    if recorded.screenshot == found.screenshot {
        return Verdict::Same { masked: 0 };
    }
    let (one, other) = (recorded.png.clone(), found.png.clone());
    let compared = tokio::task::spawn_blocking(move || pngs(&one, &other, &masks)).await;
    compared.unwrap_or_else(|error| Verdict::Differs(format!("it could not be compared: {error}")))
}

fn pngs(recorded: &[u8], found: &[u8], masks: &[Area]) -> Verdict {
    let (Some(one), Some(other)) = (decode(recorded), decode(found)) else {
        return Verdict::Differs("one of the two is no picture of the usual kind".to_owned());
    };
    match compare(one.picture(), other.picture(), masks) {
        Likeness::Same { masked } => Verdict::Same { masked },
        Likeness::Sizes => {
            Verdict::Differs(format!("it is {}x{}, and was {}x{}", other.width, other.height, one.width, one.height))
        }
        Likeness::Differs { pixels, areas } => {
            let named: Vec<String> = areas.iter().take(MOST_NAMED).map(Area::to_string).collect();
            let more = areas.len().saturating_sub(named.len());
            let more = if more == 0 { String::new() } else { format!(" and {more} more areas") };
            Verdict::Differs(format!("{pixels} pixels, {}{more}", named.join(", ")))
        }
    }
}

struct Decoded {
    width: u16,
    height: u16,
    rgb: Vec<u8>,
}

impl Decoded {
    fn picture(&self) -> Picture<'_> {
        Picture { width: self.width, height: self.height, rgb: &self.rgb }
    }
}

fn decode(png: &[u8]) -> Option<Decoded> {
    let mut reader = png::Decoder::new(Cursor::new(png)).read_info().ok()?;
    let mut rgb = vec![0; reader.output_buffer_size()?];
    let info = reader.next_frame(&mut rgb).ok()?;
    let usual = (info.color_type, info.bit_depth) == (png::ColorType::Rgb, png::BitDepth::Eight);
    rgb.truncate(info.buffer_size());
    let (width, height) = (u16::try_from(info.width).ok()?, u16::try_from(info.height).ok()?);
    usual.then_some(Decoded { width, height, rgb })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::picture::tests::png_with_dot;

    #[test]
    fn one_dot_that_moved_is_told_with_its_place_unless_it_is_masked() {
        let (one, other) = (png_with_dot(40, 30, (3, 4)), png_with_dot(40, 30, (20, 20)));
        assert_eq!(pngs(&one, &one, &[]), Verdict::Same { masked: 0 });
        let Verdict::Differs(why) = pngs(&one, &other, &[]) else { panic!() };
        assert_eq!(why, "2 pixels, 1x1 at 3,4, 1x1 at 20,20");
        let mask = |x, y| Area { x, y, width: 1, height: 1 };
        assert_eq!(pngs(&one, &other, &[mask(3, 4), mask(20, 20)]), Verdict::Same { masked: 2 });
        assert!(
            matches!(pngs(&one, &png_with_dot(30, 40, (3, 4)), &[]), Verdict::Differs(why) if why.contains("30x40"))
        );
        assert!(matches!(pngs(&one, b"no picture", &[]), Verdict::Differs(_)));
    }
}
