//! A window that writes down what comes in: the test's own X program, which decodes keys
//! by the core protocol's rules and follows changes of the mapping as programs do.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use x11rb::connection::Connection;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeGCAux, ClientMessageEvent, ConnectionExt, CreateGCAux, CreateWindowAux, EventMask, InputFocus,
    Rectangle, WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

use crate::server::{HEIGHT, Server, WIDTH};

/// What came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A key went down: what it gives, and the modifiers before it.
    Down(u32, u16),
    /// A key came up.
    Up(u32),
    /// A button went down, and where.
    Press(u8, i16, i16),
    /// A button came up, and where.
    Release(u8, i16, i16),
    /// The pointer moved.
    Move(i16, i16),
    /// Our own mark: all that was injected before it has been seen.
    Mark,
}

/// A window over the whole screen, with the focus.
pub(crate) struct Window {
    seen: Mutex<Receiver<(Seen, u32)>>,
    painter: RustConnection,
    id: u32,
    gc: u32,
}

impl Window {
    pub(crate) fn open(server: &Server) -> Self {
        let (client, _) = x11rb::connect(Some(&server.display())).unwrap();
        let root = client.setup().roots[0].root;
        let id = client.generate_id().unwrap();
        let look = CreateWindowAux::new().background_pixel(0x20_4060).override_redirect(1).event_mask(
            EventMask::KEY_PRESS
                | EventMask::KEY_RELEASE
                | EventMask::BUTTON_PRESS
                | EventMask::BUTTON_RELEASE
                | EventMask::POINTER_MOTION,
        );
        client.create_window(24, id, root, 0, 0, WIDTH, HEIGHT, 0, WindowClass::INPUT_OUTPUT, 0, &look).unwrap();
        client.map_window(id).unwrap();
        client.set_input_focus(InputFocus::PARENT, id, x11rb::CURRENT_TIME).unwrap();
        client.sync().unwrap();
        let (painter, _) = x11rb::connect(Some(&server.display())).unwrap();
        let gc = painter.generate_id().unwrap();
        painter.create_gc(gc, id, &CreateGCAux::new()).unwrap();
        painter.sync().unwrap();
        let (sender, seen) = channel();
        std::thread::spawn(move || {
            let mut mapping = Mapping::read(&client);
            while let Ok(event) = client.wait_for_event() {
                let seen = match event {
                    Event::MappingNotify(_) => {
                        mapping = Mapping::read(&client);
                        continue;
                    }
                    Event::KeyPress(e) => {
                        (Seen::Down(mapping.keysym(e.detail, e.state.into()), e.state.into()), e.time)
                    }
                    Event::KeyRelease(e) => (Seen::Up(mapping.keysym(e.detail, e.state.into())), e.time),
                    Event::ButtonPress(e) => (Seen::Press(e.detail, e.root_x, e.root_y), e.time),
                    Event::ButtonRelease(e) => (Seen::Release(e.detail, e.root_x, e.root_y), e.time),
                    Event::MotionNotify(e) => (Seen::Move(e.root_x, e.root_y), e.time),
                    Event::ClientMessage(_) => (Seen::Mark, 0),
                    _ => continue,
                };
                if sender.send(seen).is_err() {
                    return;
                }
            }
        });
        Self { seen: Mutex::new(seen), painter, id, gc }
    }

    /// Everything that came in since the last call, with the server's times in ms.
    pub(crate) fn seen_with_times(&self) -> Vec<(Seen, u32)> {
        let mark = ClientMessageEvent::new(32, self.id, u32::from(AtomEnum::STRING), [0; 5]);
        self.painter.send_event(false, self.id, EventMask::NO_EVENT, mark).unwrap();
        self.painter.sync().unwrap();
        let seen = self.seen.lock().unwrap();
        seen.iter().take_while(|(seen, _)| *seen != Seen::Mark).collect()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen_with_times().into_iter().map(|(seen, _)| seen).collect()
    }

    /// What is seen but for moves of the pointer.
    pub(crate) fn seen_but_moves(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| !matches!(seen, Seen::Move(..))).collect()
    }

    /// The characters of the keys that went down, modifiers aside.
    pub(crate) fn text(&self) -> String {
        self.seen()
            .into_iter()
            .filter_map(|seen| match seen {
                Seen::Down(keysym, _) => character(keysym),
                _ => None,
            })
            .collect()
    }

    /// Fills a rectangle of the window with a color.
    pub(crate) fn paint(&self, color: u32, x: i16, y: i16, width: u16, height: u16) {
        self.painter.change_gc(self.gc, &ChangeGCAux::new().foreground(color)).unwrap();
        self.painter.poly_fill_rectangle(self.id, self.gc, &[Rectangle { x, y, width, height }]).unwrap();
        self.painter.sync().unwrap();
    }
}

fn character(keysym: u32) -> Option<char> {
    match keysym {
        0xff0d => Some('\n'),
        0xff09 => Some('\t'),
        0x20..=0xff | 0x20ac => char::from_u32(keysym),
        0x0100_0000.. => char::from_u32(keysym - 0x0100_0000),
        0xfe00..=0xffff => None,
        other => Some(char::from_u32(other).unwrap_or('\u{fffd}')),
    }
}

struct Mapping {
    first: u8,
    per_key: usize,
    keysyms: Vec<u32>,
}

impl Mapping {
    fn read(client: &RustConnection) -> Self {
        let setup = client.setup();
        let count = setup.max_keycode - setup.min_keycode + 1;
        let reply = client.get_keyboard_mapping(setup.min_keycode, count).unwrap().reply().unwrap();
        Self { first: setup.min_keycode, per_key: reply.keysyms_per_keycode.into(), keysyms: reply.keysyms }
    }

    /// What a key gives: two columns for each of two groups, then the third and fourth
    /// levels (which Mod5 chooses) of the first.
    fn keysym(&self, code: u8, state: u16) -> u32 {
        let key = &self.keysyms[usize::from(code - self.first) * self.per_key..][..self.per_key];
        let (shift, lock, level3) = (state & 1 != 0, state & 2 != 0, state & 0x80 != 0);
        let column = if level3 && self.per_key > 4 && key[4] != 0 { 4 } else { 0 };
        let low = key[column];
        let high = key.get(column + 1).copied().filter(|keysym| *keysym != 0).unwrap_or(low);
        let letter = matches!(low, 0x61..=0x7a | 0xe0..=0xfe);
        if shift != (lock && letter) { high } else { low }
    }
}
