//! Places: a model's coordinates, in whatever grid it has been given, to pixels of the screen.

use longhaul_core::agent::ImageSize;

/// The grid of a model's coordinates over a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    columns: u32,
    rows: u32,
    screen: ImageSize,
}

/// A part of the screen, in pixels; never empty, never beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) left: u16,
    pub(crate) top: u16,
    pub(crate) width: u16,
    pub(crate) height: u16,
}

impl Grid {
    /// Coordinates are pixels of the image that the model sees.
    pub(crate) fn of_image(image: ImageSize, screen: ImageSize) -> Self {
        Self { columns: u32::from(image.width.max(1)), rows: u32::from(image.height.max(1)), screen }
    }

    /// Coordinates are thousandths of the screen, whatever image the model sees.
    pub(crate) const fn thousandths(screen: ImageSize) -> Self {
        Self { columns: 1000, rows: 1000, screen }
    }

    /// How many columns and rows it has.
    pub(crate) const fn size(&self) -> (u32, u32) {
        (self.columns, self.rows)
    }

    /// The pixel under a place; what is beyond the grid is refused, since a click at the edge
    /// instead would be one that nobody asked for. The end itself counts as the last pixel:
    /// models name it for the edge.
    pub(crate) fn point(&self, x: f64, y: f64) -> Result<[i32; 2], String> {
        match (along(x, self.columns, self.screen.width), along(y, self.rows, self.screen.height)) {
            (Some(x), Some(y)) => Ok([x, y]),
            _ => Err(format!("[{x}, {y}] is beyond the {}x{} that coordinates may name", self.columns, self.rows)),
        }
    }

    /// The part of the screen between two places.
    pub(crate) fn region(&self, corners: [f64; 4]) -> Result<Region, String> {
        let [x0, y0, x1, y1] = corners;
        let ([left, top], [right, bottom]) = (self.point(x0, y0)?, self.point(x1, y1)?);
        let span = |start: i32, end: i32| {
            Some((u16::try_from(start).ok()?, u16::try_from(end - start).ok().filter(|length| *length > 0)?))
        };
        match (span(left, right), span(top, bottom)) {
            (Some((left, width)), Some((top, height))) => Ok(Region { left, top, width, height }),
            _ => Err(format!("[{x0}, {y0}, {x1}, {y1}] encloses nothing: left, top, right, bottom are expected")),
        }
    }

    /// The place of a pixel, for a model that asks where the pointer is.
    pub(crate) fn place(&self, point: [i32; 2]) -> [i64; 2] {
        let back = |value: i32, cells: u32, pixels: u16| i64::from(value) * i64::from(cells) / i64::from(pixels.max(1));
        [back(point[0], self.columns, self.screen.width), back(point[1], self.rows, self.screen.height)]
    }
}

/// The middle of the cell that a number names, as a pixel.
fn along(value: f64, cells: u32, pixels: u16) -> Option<i32> {
    let cells = f64::from(cells);
    if !value.is_finite() || value < 0.0 || value > cells {
        return None;
    }
    let pixel = ((value + 0.5) * f64::from(pixels) / cells).floor();
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and a u16")]
    Some((pixel as i32).min(i32::from(pixels) - 1))
}

/// The size of an image of a screen that stays within `limit` on both sides and keeps the
/// screen's form; never larger than the screen.
pub(crate) fn fit(screen: ImageSize, limit: Option<ImageSize>) -> ImageSize {
    let Some(limit) = limit else { return screen };
    let (width, height) = (u64::from(screen.width), u64::from(screen.height));
    let (most_wide, most_high) = (u64::from(limit.width.max(1)), u64::from(limit.height.max(1)));
    if width <= most_wide && height <= most_high || width == 0 || height == 0 {
        return screen;
    }
    let (fit_width, fit_height) = if width * most_high >= height * most_wide {
        (most_wide, (height * most_wide + width / 2) / width)
    } else {
        ((width * most_high + height / 2) / height, most_high)
    };
    let side = |value: u64| u16::try_from(value.max(1)).unwrap_or(u16::MAX);
    ImageSize { width: side(fit_width), height: side(fit_height) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: ImageSize = ImageSize { width: 1920, height: 1080 };

    #[test]
    fn images_keep_the_screens_form_and_never_grow() {
        let limit = |width, height| Some(ImageSize { width, height });
        assert_eq!(fit(SCREEN, None), SCREEN);
        assert_eq!(fit(SCREEN, limit(1280, 800)), ImageSize { width: 1280, height: 720 });
        assert_eq!(fit(SCREEN, limit(2000, 540)), ImageSize { width: 960, height: 540 });
        assert_eq!(fit(SCREEN, limit(4000, 4000)), SCREEN);
        assert_eq!(fit(SCREEN, limit(0, 0)), ImageSize { width: 1, height: 1 });
        assert_eq!(fit(ImageSize { width: 0, height: 0 }, limit(5, 5)), ImageSize { width: 0, height: 0 });
    }

    #[test]
    fn places_become_pixels_and_what_is_beyond_is_refused() {
        let same = Grid::of_image(SCREEN, SCREEN);
        assert_eq!(same.point(0.0, 1079.0), Ok([0, 1079]));
        assert_eq!(same.point(1920.0, 1080.0), Ok([1919, 1079]), "the end is the edge");
        let smaller = Grid::of_image(ImageSize { width: 1280, height: 720 }, SCREEN);
        assert_eq!(smaller.point(640.0, 360.0), Ok([960, 540]));
        assert_eq!(Grid::thousandths(SCREEN).point(500.0, 999.0), Ok([960, 1079]));
        for (x, y) in [(-1.0, 0.0), (1281.0, 0.0), (0.0, 1e300), (f64::NAN, 0.0), (f64::INFINITY, 0.0)] {
            assert!(smaller.point(x, y).is_err(), "{x} {y}");
        }
    }

    #[test]
    fn every_pixel_of_the_image_stays_in_its_own_part_of_the_screen() {
        let image = ImageSize { width: 7, height: 3 };
        let grid = Grid::of_image(image, ImageSize { width: 100, height: 50 });
        for column in 0..7_u16 {
            let [x, _] = grid.point(f64::from(column), 0.0).unwrap();
            assert_eq!(x * 7 / 100, i32::from(column));
            assert_eq!(grid.place([x, 0])[0], i64::from(column));
        }
    }

    #[test]
    fn regions_are_parts_of_the_screen() {
        let grid = Grid::of_image(ImageSize { width: 1280, height: 720 }, SCREEN);
        let region = grid.region([0.0, 0.0, 640.0, 360.0]).unwrap();
        assert_eq!(region, Region { left: 0, top: 0, width: 960, height: 540 });
        assert!(grid.region([10.0, 10.0, 10.0, 20.0]).is_err());
        assert!(grid.region([20.0, 10.0, 10.0, 20.0]).is_err());
        assert!(grid.region([0.0, 0.0, 1e9, 20.0]).is_err());
    }
}
