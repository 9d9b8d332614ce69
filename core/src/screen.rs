//! Whether a screen shows what an earlier one showed.
//!
//! Two sandboxes over the same layers draw the same pixels: the fonts, the themes and the
//! renderers are the same bytes, and nothing is drawn by a GPU. So a replay asks for equal
//! pixels, and forgives little:
//!
//! * a difference of up to [`TOLERANCE`] in each color, since processors with vectors of another
//!   width round otherwise;
//! * what lies within a mask: a place that was seen to change by itself in the recorded
//!   trajectory, while nothing was injected ([`masks`]). Masks are as tight as what changed, so
//!   that what stands beside a caret or a clock still counts.
//!
//! A single other pixel outside of the masks is a difference. A replay that is taken for a success
//! while something else is on the screen would make a trajectory that never was; one that is given
//! up in vain costs a start from the beginning. What no screen shows (a file that was saved with
//! other bytes, with no sign of it) no comparison of screens can find.

use serde::{Deserialize, Serialize};

/// The largest difference of a color between two pixels that count as the same, of 255.
pub const TOLERANCE: u8 = 6;

/// The largest part of the screen that one mask may cover, as one in so many.
const MASK_PART: u64 = 200;

/// The largest part of the screen that all masks of one observation may cover together, as one
/// in so many.
const MASKS_PART: u64 = 50;

/// The largest part of the screen that a mask of all observations may cover, as one in so many.
const ALWAYS_PART: u64 = 1000;

/// A place that was seen to change by itself after so many observations does so after each.
const ALWAYS_AFTER: u32 = 3;

/// Differing pixels are gathered in squares of this side, and touching squares are one area.
const CELL: u16 = 8;

/// The most areas that are told; beyond them, the last one holds all the rest.
const MOST_AREAS: usize = 64;

/// A part of a screen, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Area {
    /// Pixels from the left edge.
    pub x: u16,
    /// Pixels from the upper edge.
    pub y: u16,
    /// Pixels across.
    pub width: u16,
    /// Pixels down.
    pub height: u16,
}

impl Area {
    /// How many pixels it has.
    #[must_use]
    pub const fn pixels(self) -> u64 {
        self.width as u64 * self.height as u64
    }

    /// Whether it is small enough on a screen of that size to be a caret or a clock.
    #[must_use]
    pub fn is_small(self, width: u16, height: u16) -> bool {
        self.is_part(MASK_PART, u64::from(width) * u64::from(height))
    }

    /// Whether it is at most one in so many parts of a screen with so many pixels.
    const fn is_part(self, part: u64, screen: u64) -> bool {
        self.pixels().saturating_mul(part) <= screen
    }

    const fn right(self) -> u16 {
        self.x.saturating_add(self.width)
    }

    const fn bottom(self) -> u16 {
        self.y.saturating_add(self.height)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }

    /// The smallest area that holds both.
    fn with(self, other: Self) -> Self {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let (right, bottom) = (self.right().max(other.right()), self.bottom().max(other.bottom()));
        Self { x, y, width: right - x, height: bottom - y }
    }
}

impl std::fmt::Display for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{} at {},{}", self.width, self.height, self.x, self.y)
    }
}

/// Gathers single pixels to areas.
#[derive(Clone, Debug)]
pub struct Gatherer {
    across: u16,
    /// What of each square was marked.
    cells: Vec<Option<Area>>,
}

impl Gatherer {
    /// For a screen of that size.
    #[must_use]
    pub fn new(width: u16, height: u16) -> Self {
        let across = width.div_ceil(CELL);
        let down = height.div_ceil(CELL);
        Self { across, cells: vec![None; usize::from(across) * usize::from(down)] }
    }

    /// Marks a pixel; one beyond the screen is left out.
    pub fn mark(&mut self, x: u16, y: u16) {
        if x / CELL >= self.across {
            return;
        }
        let index = usize::from(y / CELL) * usize::from(self.across) + usize::from(x / CELL);
        if let Some(cell) = self.cells.get_mut(index) {
            let pixel = Area { x, y, width: 1, height: 1 };
            *cell = Some(cell.map_or(pixel, |marked| marked.with(pixel)));
        }
    }

    /// The areas: each holds what was marked in squares that touch, and no more.
    #[must_use]
    pub fn areas(mut self) -> Vec<Area> {
        let across = usize::from(self.across);
        let mut areas: Vec<Area> = Vec::new();
        for start in 0..self.cells.len() {
            let Some(mut area) = self.cells[start].take() else { continue };
            let mut waiting = vec![start];
            while let Some(index) = waiting.pop() {
                let (column, row) = (index % across, index / across);
                for near_row in row.saturating_sub(1)..=row + 1 {
                    for near_column in column.saturating_sub(1)..=(column + 1).min(across - 1) {
                        let near = near_row * across + near_column;
                        if let Some(marked) = self.cells.get_mut(near).and_then(Option::take) {
                            area = area.with(marked);
                            waiting.push(near);
                        }
                    }
                }
            }
            areas.push(area);
        }
        while areas.len() > MOST_AREAS
            && let (Some(one), Some(other)) = (areas.pop(), areas.last_mut())
        {
            *other = other.with(one);
        }
        areas
    }
}

/// The pixels of a screenshot: three bytes each, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// Pixels across.
    pub width: u16,
    /// Pixels down.
    pub height: u16,
    /// Red, green and blue.
    pub rgb: &'a [u8],
}

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// They show the same.
    Same {
        /// How many pixels differ within masks.
        masked: u64,
    },
    /// They do not.
    Differs {
        /// How many pixels differ outside of masks.
        pixels: u64,
        /// Where.
        areas: Vec<Area>,
    },
    /// They are of another size, or one of them is no picture.
    Sizes,
}

/// Compares what is on a screen with what was recorded.
#[must_use]
pub fn compare(recorded: Picture<'_>, found: Picture<'_>, masks: &[Area]) -> Likeness {
    let (width, height) = (recorded.width, recorded.height);
    let bytes = usize::from(width) * usize::from(height) * 3;
    let fits = |picture: Picture<'_>| (picture.width, picture.height) == (width, height) && picture.rgb.len() == bytes;
    if bytes == 0 || !fits(recorded) || !fits(found) {
        return Likeness::Sizes;
    }
    let (mut pixels, mut masked) = (0, 0);
    let mut gatherer = Gatherer::new(width, height);
    let row_bytes = usize::from(width) * 3;
    let rows = recorded.rgb.chunks_exact(row_bytes).zip(found.rgb.chunks_exact(row_bytes));
    for (y, (one, other)) in (0..height).zip(rows) {
        if one == other {
            continue;
        }
        for (x, (one, other)) in (0..width).zip(one.chunks_exact(3).zip(other.chunks_exact(3))) {
            if one.iter().zip(other).all(|(one, other)| one.abs_diff(*other) <= TOLERANCE) {
                continue;
            }
            let pixel = Area { x, y, width: 1, height: 1 };
            if masks.iter().any(|mask| mask.overlaps(pixel)) {
                masked += 1;
            } else {
                pixels += 1;
                gatherer.mark(x, y);
            }
        }
    }
    if pixels == 0 { Likeness::Same { masked } } else { Likeness::Differs { pixels, areas: gatherer.areas() } }
}

/// The masks of each observation of a trajectory, from where the screen changed by itself after
/// it while nothing was injected.
///
/// What changed after an observation is masked in it, unless it is large: a page that came up
/// late is no clock. A small place that changed so after several observations is masked in all.
#[must_use]
pub fn masks(width: u16, height: u16, stirred: &[&[Area]]) -> Vec<Vec<Area>> {
    let screen = u64::from(width) * u64::from(height);
    let mut places: Vec<Place> = Vec::new();
    for (observation, areas) in stirred.iter().enumerate() {
        for area in areas.iter().filter(|area| area.is_part(ALWAYS_PART, screen)) {
            let known = places
                .iter_mut()
                .find(|place| place.area.overlaps(*area) && place.area.with(*area).is_part(ALWAYS_PART, screen));
            match known {
                Some(place) => place.add(observation, *area),
                None => places.push(Place { area: *area, seen: 1, last: observation }),
            }
        }
    }
    let always: Vec<Area> = places.iter().filter(|place| place.seen >= ALWAYS_AFTER).map(|place| place.area).collect();
    let of_one = |areas: &&[Area]| {
        let own = areas.iter().filter(|area| area.is_small(width, height));
        let mut masks: Vec<Area> = own.chain(&always).copied().collect();
        // Where that is too much to overlook, nothing is overlooked.
        if masks.iter().map(|mask| mask.pixels()).sum::<u64>().saturating_mul(MASKS_PART) > screen {
            masks.clear();
        }
        masks
    };
    stirred.iter().map(of_one).collect()
}

/// A place that changes by itself.
struct Place {
    area: Area,
    /// After how many observations.
    seen: u32,
    last: usize,
}

impl Place {
    fn add(&mut self, observation: usize, area: Area) {
        self.area = self.area.with(area);
        self.seen += u32::from(observation != self.last);
        self.last = observation;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDTH: u16 = 200;
    const HEIGHT: u16 = 120;

    fn blank() -> Vec<u8> {
        vec![200; usize::from(WIDTH) * usize::from(HEIGHT) * 3]
    }

    fn picture(rgb: &[u8]) -> Picture<'_> {
        Picture { width: WIDTH, height: HEIGHT, rgb }
    }

    fn paint(rgb: &mut [u8], area: Area, color: u8) {
        for y in area.y..area.bottom().min(HEIGHT) {
            for x in area.x..area.right().min(WIDTH) {
                let at = (usize::from(y) * usize::from(WIDTH) + usize::from(x)) * 3;
                rgb[at..at + 3].fill(color);
            }
        }
    }

    const fn area(x: u16, y: u16, width: u16, height: u16) -> Area {
        Area { x, y, width, height }
    }

    #[test]
    fn one_other_pixel_is_a_difference_and_a_rounding_is_none() {
        let recorded = blank();
        let mut found = blank();
        paint(&mut found, area(0, 0, WIDTH, HEIGHT), 200 + TOLERANCE);
        assert_eq!(compare(picture(&recorded), picture(&found), &[]), Likeness::Same { masked: 0 });
        paint(&mut found, area(17, 33, 1, 1), 200 + TOLERANCE + 1);
        let differs = Likeness::Differs { pixels: 1, areas: vec![area(17, 33, 1, 1)] };
        assert_eq!(compare(picture(&recorded), picture(&found), &[]), differs);
        let masked = compare(picture(&recorded), picture(&found), &[area(17, 33, 1, 1)]);
        assert_eq!(masked, Likeness::Same { masked: 1 });
    }

    #[test]
    fn pictures_of_another_size_or_cut_short_are_never_the_same() {
        let rgb = blank();
        let other = Picture { width: HEIGHT, height: WIDTH, rgb: &rgb };
        assert_eq!(compare(picture(&rgb), other, &[]), Likeness::Sizes);
        assert_eq!(compare(picture(&rgb), picture(&rgb[3..]), &[]), Likeness::Sizes);
        let none = Picture { width: 0, height: 0, rgb: &[] };
        assert_eq!(compare(none, none, &[]), Likeness::Sizes);
    }

    #[test]
    fn differences_are_told_as_areas_that_hold_them_tightly() {
        let recorded = blank();
        let mut found = blank();
        paint(&mut found, area(10, 10, 2, 20), 0);
        paint(&mut found, area(100, 60, 30, 5), 0);
        let Likeness::Differs { pixels, areas } = compare(picture(&recorded), picture(&found), &[]) else { panic!() };
        assert_eq!((pixels, areas), (40 + 150, vec![area(10, 10, 2, 20), area(100, 60, 30, 5)]));
    }

    #[test]
    fn beside_a_caret_everything_counts() {
        // A caret that blinked after the observation, and a letter beside it that is another.
        let caret = area(60, 40, 2, 16);
        let masks = masks(WIDTH, HEIGHT, &[&[caret], &[]]);
        assert_eq!(masks, [vec![caret], vec![]]);
        let recorded = blank();
        let mut found = blank();
        paint(&mut found, caret, 0);
        assert_eq!(compare(picture(&recorded), picture(&found), &masks[0]), Likeness::Same { masked: 32 });
        paint(&mut found, area(58, 44, 1, 8), 0);
        assert!(matches!(compare(picture(&recorded), picture(&found), &masks[0]), Likeness::Differs { pixels: 8, .. }));
    }

    #[test]
    fn a_clock_is_masked_everywhere_once_it_is_known_and_a_late_page_nowhere() {
        let (clock, page) = (area(180, 2, 8, 2), area(0, 20, 150, 90));
        let ticks: [&[Area]; 5] = [&[clock], &[page], &[area(182, 2, 8, 2)], &[], &[clock]];
        let masks = masks(WIDTH, HEIGHT, &ticks);
        let wide = area(180, 2, 10, 2);
        assert!(masks.iter().all(|masks| masks.contains(&wide) && !masks.contains(&page)), "{masks:?}");
        // Twice after the same observation is once.
        let twice: [&[Area]; 2] = [&[clock, clock, clock], &[]];
        assert_eq!(super::masks(WIDTH, HEIGHT, &twice)[1], []);
    }

    #[test]
    fn what_would_hide_too_much_hides_nothing() {
        let many: Vec<Area> = (0..10).map(|index| area(index * 15, 50, 11, 10)).collect();
        assert_eq!(masks(WIDTH, HEIGHT, &[&many]), [vec![]]);
        assert_eq!(masks(WIDTH, HEIGHT, &[&many[..2]])[0].len(), 2);
    }

    fn areas() -> impl Strategy<Value = Area> {
        (0..WIDTH, 0..HEIGHT, 1..40_u16, 1..40_u16)
            .prop_map(|(x, y, width, height)| area(x, y, width.min(WIDTH - x), height.min(HEIGHT - y)))
    }

    proptest! {
        /// Whatever is painted outside of the masks is found, and told where it is.
        #[test]
        fn no_difference_outside_of_masks_is_overlooked(
            painted in areas(),
            masks in proptest::collection::vec(areas(), 0..4),
            color in 0..=255_u8,
        ) {
            let recorded = blank();
            let mut found = blank();
            paint(&mut found, painted, color);
            let likeness = compare(picture(&recorded), picture(&found), &masks);
            let outside = (painted.y..painted.bottom()).flat_map(|y| (painted.x..painted.right()).map(move |x| (x, y)));
            let outside = outside.filter(|(x, y)| !masks.iter().any(|mask| mask.overlaps(area(*x, *y, 1, 1)))).count();
            let seen = color.abs_diff(200) > TOLERANCE && outside > 0;
            match likeness {
                Likeness::Same { .. } => prop_assert!(!seen),
                Likeness::Differs { pixels, areas } => {
                    prop_assert!(seen);
                    prop_assert_eq!(pixels, outside as u64);
                    prop_assert!(areas.iter().all(|found| found.with(painted) == painted), "{:?}", areas);
                }
                Likeness::Sizes => prop_assert!(false),
            }
            // Which of the two is the recorded one does not matter.
            let back = compare(picture(&found), picture(&recorded), &masks);
            prop_assert_eq!(matches!(back, Likeness::Same { .. }), !seen);
        }

        /// No list of what stirred hides more of the screen than the stated part.
        #[test]
        fn masks_never_cover_more_than_the_stated_part(
            stirred in proptest::collection::vec(proptest::collection::vec(areas(), 0..6), 1..8),
        ) {
            let stirred: Vec<&[Area]> = stirred.iter().map(Vec::as_slice).collect();
            let masks = masks(WIDTH, HEIGHT, &stirred);
            prop_assert_eq!(masks.len(), stirred.len());
            let screen = u64::from(WIDTH) * u64::from(HEIGHT);
            for masks in masks {
                prop_assert!(masks.iter().map(|mask| mask.pixels()).sum::<u64>() * MASKS_PART <= screen);
            }
        }
    }
}
