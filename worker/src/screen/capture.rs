//! The frame as the server has it, kept up to date here.
//!
//! Pixels come through memory that we share with the server by a passed descriptor
//! (MIT-SHM 1.2, which works across a sandbox's namespaces); where the server cannot do
//! that, they come over the socket. The memory is ours and read with plain reads: it
//! need not be mapped, and a server that shrinks it gives an error and no signal.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use longhaul_core::screen::{Area as Place, Gatherer};
use nix::sys::memfd::{MFdFlags, memfd_create};
use x11rb::connection::Connection;
use x11rb::protocol::shm::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{ConnectionExt as _, ImageFormat, ImageOrder, Rectangle, Window};

use super::error::{ScreenError, during, reply};
use super::link::{Client, Link};

const CAPTURING: &str = "capturing the screen";
const SHARING: &str = "sharing memory with the display";
const BYTES_PER_PIXEL: usize = 4;

/// How much is read from the shared memory and compared at a time: little enough to stay
/// in a processor's cache.
const SLICE: usize = 256 * 1024;

/// Memory that the server writes frames to.
#[derive(Debug)]
struct Shared {
    segment: shm::Seg,
    file: File,
}

/// The frame, and where its pixels come from.
#[derive(Debug)]
pub(super) struct Capture {
    root: Window,
    width: u16,
    height: u16,
    /// BGRX, without gaps between the rows, and without the pointer.
    pixels: Vec<u8>,
    slice: Vec<u8>,
    /// Counts the changes of `pixels`.
    generation: u64,
    /// Gathers where it changes, while somebody wants to know.
    gatherer: Option<Gatherer>,
    shared: Option<Shared>,
}

impl Capture {
    /// Prepares to capture the whole screen; nothing is captured yet.
    pub(super) fn new(link: &Link) -> Result<Self, ScreenError> {
        let client = &link.client;
        let setup = client.setup();
        let screen = setup.roots.first().ok_or(ScreenError::Lacks { what: "a screen" })?;
        let packed = setup.pixmap_formats.iter().any(|format| {
            format.depth == screen.root_depth && format.bits_per_pixel == 32 && format.scanline_pad == 32
        });
        let visual = screen
            .allowed_depths
            .iter()
            .flat_map(|depth| &depth.visuals)
            .find(|visual| visual.visual_id == screen.root_visual);
        let bgrx = visual
            .is_some_and(|visual| (visual.red_mask, visual.green_mask, visual.blue_mask) == (0xFF_0000, 0xFF00, 0xFF));
        if !packed || !bgrx || setup.image_byte_order != ImageOrder::LSB_FIRST {
            return Err(ScreenError::Lacks { what: "a screen of 24 bits in pixels of 32" });
        }
        let shares = link.has(shm::X11_EXTENSION_NAME)?
            && client
                .shm_query_version()
                .map_err(during(SHARING))?
                .reply()
                .map_err(reply(SHARING))
                .is_ok_and(|version| (version.major_version, version.minor_version) >= (1, 2));
        let mut capture = Self {
            root: screen.root,
            width: 0,
            height: 0,
            pixels: Vec::new(),
            slice: vec![0; SLICE],
            generation: 0,
            gatherer: None,
            shared: None,
        };
        capture.resize(client, screen.width_in_pixels, screen.height_in_pixels, shares)?;
        Ok(capture)
    }

    /// Pixels across and down.
    pub(super) const fn size(&self) -> (u16, u16) {
        (self.width, self.height)
    }

    /// The frame as it was found last: BGRX.
    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// A number that is another after every change of the frame.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Gathers from now on where the frame changes.
    pub(super) fn gather(&mut self) {
        self.gatherer = Some(Gatherer::new(self.width, self.height));
    }

    /// Where it changed since [`Self::gather`].
    pub(super) fn gathered(&mut self) -> Vec<Place> {
        self.gatherer.take().map(Gatherer::areas).unwrap_or_default()
    }

    fn resize(&mut self, client: &Client, width: u16, height: u16, share: bool) -> Result<(), ScreenError> {
        let bytes = usize::from(width) * usize::from(height) * BYTES_PER_PIXEL;
        if let Some(old) = self.shared.take() {
            client.shm_detach(old.segment).map_err(during(SHARING))?;
        }
        if share {
            self.shared = Shared::new(client, bytes as u64)?;
        }
        (self.width, self.height) = (width, height);
        self.pixels = vec![0; bytes];
        self.generation += 1;
        Ok(())
    }

    /// Captures the whole screen, of whatever size it is by now (a program may ask the
    /// server for another one). Returns whether it has changed.
    pub(super) fn refresh(&mut self, client: &Client) -> Result<bool, ScreenError> {
        let geometry = client.get_geometry(self.root).map_err(during(CAPTURING))?.reply().map_err(reply(CAPTURING))?;
        let resized = (geometry.width, geometry.height) != (self.width, self.height);
        if resized {
            let share = self.shared.is_some();
            self.resize(client, geometry.width, geometry.height, share)?;
        }
        let whole = Rectangle { x: 0, y: 0, width: self.width, height: self.height };
        Ok(self.refresh_part(client, whole)? || resized)
    }

    /// Captures a part of the screen. Returns whether it has changed.
    pub(super) fn refresh_part(&mut self, client: &Client, part: Rectangle) -> Result<bool, ScreenError> {
        let Some(area) = Area::cut(part, self.width, self.height) else { return Ok(false) };
        let changed = if let Some(shared) = &self.shared {
            client
                .shm_get_image(
                    self.root,
                    area.x,
                    area.y,
                    area.width,
                    area.height,
                    !0,
                    ImageFormat::Z_PIXMAP.into(),
                    shared.segment,
                    0,
                )
                .map_err(during(CAPTURING))?
                .reply()
                .map_err(reply(CAPTURING))?;
            let row = area.row_bytes();
            let rows_at_once = (SLICE / row).max(1);
            self.slice.resize(self.slice.len().max(row), 0);
            let mut changed = false;
            for first in (0..area.rows()).step_by(rows_at_once) {
                let rows = rows_at_once.min(area.rows() - first);
                let slice = &mut self.slice[..rows * row];
                shared.file.read_exact_at(slice, (first * row) as u64).map_err(memory)?;
                let frame = Rows { pixels: &mut self.pixels, width: usize::from(self.width) };
                changed |= area.take(frame, first, slice, self.gatherer.as_mut());
            }
            changed
        } else {
            let image = client
                .get_image(ImageFormat::Z_PIXMAP, self.root, area.x, area.y, area.width, area.height, !0)
                .map_err(during(CAPTURING))?
                .reply()
                .map_err(reply(CAPTURING))?;
            if image.data.len() < area.rows() * area.row_bytes() {
                return Err(ScreenError::Protocol { during: CAPTURING, reason: "a short image".to_owned() });
            }
            let frame = Rows { pixels: &mut self.pixels, width: usize::from(self.width) };
            area.take(frame, 0, &image.data[..area.rows() * area.row_bytes()], self.gatherer.as_mut())
        };
        self.generation += u64::from(changed);
        Ok(changed)
    }
}

impl Shared {
    /// Shares `bytes` of memory; `None` when the server will not have it.
    fn new(client: &Client, bytes: u64) -> Result<Option<Self>, ScreenError> {
        let descriptor = memfd_create("longhaul-frame", MFdFlags::MFD_CLOEXEC).map_err(|errno| memory(errno.into()))?;
        let file = File::from(descriptor);
        file.set_len(bytes).map_err(memory)?;
        let passed = OwnedFd::from(file.try_clone().map_err(memory)?);
        let segment = client.generate_id().map_err(during(SHARING))?;
        let attached = client.shm_attach_fd(segment, passed, false).map_err(during(SHARING))?.check();
        match attached.map_err(reply(SHARING)) {
            Ok(()) => Ok(Some(Self { segment, file })),
            Err(ScreenError::Protocol { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn memory(source: io::Error) -> ScreenError {
    ScreenError::Memory { source }
}

/// A part of the screen that is not empty.
#[derive(Clone, Copy, Debug)]
struct Area {
    x: i16,
    y: i16,
    width: u16,
    height: u16,
}

impl Area {
    /// The part of `part` that is on the screen.
    fn cut(part: Rectangle, width: u16, height: u16) -> Option<Self> {
        let span = |start: i16, length: u16, limit: u16| {
            let first = i32::from(start).max(0);
            let end = (i32::from(start) + i32::from(length)).min(i32::from(limit));
            Some((i16::try_from(first).ok()?, u16::try_from(end - first).ok().filter(|length| *length > 0)?))
        };
        let (x, width) = span(part.x, part.width, width)?;
        let (y, height) = span(part.y, part.height, height)?;
        Some(Self { x, y, width, height })
    }

    fn rows(self) -> usize {
        usize::from(self.height)
    }

    fn row_bytes(self) -> usize {
        usize::from(self.width) * BYTES_PER_PIXEL
    }

    /// Puts rows of this area, from its row `first` on, into a frame. Returns whether anything was
    /// another.
    fn take(self, frame: Rows<'_>, first: usize, rows: &[u8], mut gatherer: Option<&mut Gatherer>) -> bool {
        let Rows { pixels, width } = frame;
        let (left, top) = (usize::from(self.x.unsigned_abs()), usize::from(self.y.unsigned_abs()) + first);
        let mut put = |target: &mut [u8], source: &[u8], y: usize| {
            let changed = target != source;
            if changed {
                if let Some(gatherer) = gatherer.as_deref_mut() {
                    mark(gatherer, target, source, (left, y), usize::from(self.width));
                }
                target.copy_from_slice(source);
            }
            changed
        };
        if usize::from(self.width) == width {
            let start = top * width * BYTES_PER_PIXEL;
            return put(&mut pixels[start..start + rows.len()], rows, top);
        }
        let mut changed = false;
        for (source, y) in rows.chunks_exact(self.row_bytes()).zip(top..) {
            let start = (y * width + left) * BYTES_PER_PIXEL;
            changed |= put(&mut pixels[start..start + source.len()], source, y);
        }
        changed
    }
}

/// The pixels of a frame, and how many are in a row.
struct Rows<'a> {
    pixels: &'a mut [u8],
    width: usize,
}

/// Marks each pixel that is another, in rows of `across` pixels that start at `at`.
fn mark(gatherer: &mut Gatherer, old: &[u8], new: &[u8], at: (usize, usize), across: usize) {
    let (left, top) = at;
    let pixels = old.chunks_exact(BYTES_PER_PIXEL).zip(new.chunks_exact(BYTES_PER_PIXEL));
    for (index, _) in pixels.enumerate().filter(|(_, (old, new))| old != new) {
        let (x, y) = (left + index % across.max(1), top + index / across.max(1));
        // A screen has fewer pixels across and down than that.
        if let (Ok(x), Ok(y)) = (u16::try_from(x), u16::try_from(y)) {
            gatherer.mark(x, y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_cut_to_the_screen() {
        let cut = |x, y, width, height| {
            Area::cut(Rectangle { x, y, width, height }, 100, 50).map(|area| (area.x, area.y, area.width, area.height))
        };
        assert_eq!(cut(0, 0, 100, 50), Some((0, 0, 100, 50)));
        assert_eq!(cut(-10, 40, 30, 30), Some((0, 40, 20, 10)));
        assert_eq!(cut(100, 0, 5, 5), None);
        assert_eq!(cut(-5, 0, 5, 5), None);
        assert_eq!(cut(3, 3, 0, 5), None);
    }

    #[test]
    fn a_part_is_put_where_it_belongs_and_only_a_change_counts() {
        let mut frame = vec![0; 4 * 3 * BYTES_PER_PIXEL];
        let area = Area { x: 1, y: 1, width: 2, height: 2 };
        let mut gatherer = Gatherer::new(4, 3);
        assert!(area.take(Rows { pixels: &mut frame, width: 4 }, 1, &[7; 8], Some(&mut gatherer)));
        assert!(!area.take(Rows { pixels: &mut frame, width: 4 }, 1, &[7; 8], Some(&mut gatherer)));
        assert_eq!(gatherer.areas(), [Place { x: 1, y: 2, width: 2, height: 1 }]);
        let changed: Vec<usize> = (0..frame.len()).filter(|index| frame[*index] == 7).collect();
        assert_eq!(changed, (36..44).collect::<Vec<_>>());
        assert!(!area.take(Rows { pixels: &mut frame, width: 4 }, 0, &[0; 8], None));
        // Whole rows are put at once.
        let mut gatherer = Gatherer::new(4, 3);
        let rows: Vec<u8> = (0..32).map(|index| u8::from(index == 21)).collect();
        let whole = Area { x: 0, y: 0, width: 4, height: 3 };
        assert!(whole.take(Rows { pixels: &mut frame, width: 4 }, 0, &rows, Some(&mut gatherer)));
        assert_eq!(gatherer.areas(), [Place { x: 1, y: 1, width: 1, height: 1 }]);
    }
}
