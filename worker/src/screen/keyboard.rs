//! Keys: chords, held keys, and text of any script on any layout.
//!
//! A character that the layout has is typed as a person would type it. One that it has
//! not is put on a borrowed key (one that gives nothing, or only a multimedia keysym). A
//! program asks for the mapping when it handles a key and not when the key is pressed, so
//! a borrowed key keeps what it was given: it gets something else only after the screen
//! has come to rest, and is given back when the screen is closed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use x11rb::protocol::xkb::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{ConnectionExt as _, ModMask};

use super::display::{Display, Motion};
use super::error::{InputError, ScreenError, during, reply};
use super::keymap::{self, Batch, Key, KeyType, Keycode, Keymap, LOCK, Loan, Modifiers, Stroke};
use super::keysym::{self, Keysym};
use super::rest::RestRule;

const READING: &str = "reading the keyboard's mapping";
const BORROWING: &str = "borrowing keys";
const CORE_KEYBOARD: xkb::DeviceSpec = 0x100;

/// Between two keys: with less, two equal keys have the same time, and toolkits take the
/// second for the keyboard's own repetition.
const KEY_PAUSE: Duration = Duration::from_millis(1);

/// How long a chord is held, for programs that look at the keys once per picture.
const CHORD_HOLD: Duration = Duration::from_millis(2);

/// After keys were borrowed, for programs that do not take notices and keys in order.
const BORROW_PAUSE: Duration = Duration::from_millis(30);

/// Before a borrowed key gets something else. The program must have handled what was typed
/// with it, and that it has drawn it is all that can be seen of that: one that draws
/// nothing is given long, because it is either busy or has nothing to show for a text.
const REUSE_REST: RestRule = RestRule {
    quiet: Duration::from_millis(400),
    first_change: Duration::from_secs(3),
    working: Duration::from_secs(3),
    idle: Duration::from_millis(75),
    limit: Duration::from_secs(6),
    interval: Duration::from_millis(25),
};

/// The longest text that is typed: it would take a minute.
pub(super) const MAX_TEXT: usize = 50_000;

/// A key that stays down until it is released by name.
#[derive(Debug)]
struct Held {
    keysym: Keysym,
    codes: Vec<Keycode>,
}

/// What is known of the keyboard beyond what the server keeps.
#[derive(Debug, Default)]
pub(super) struct Keyboard {
    /// Borrowed keys, the least recently used first.
    loans: Vec<Loan>,
    /// What the borrowed keys gave before.
    originals: BTreeMap<Keycode, Vec<Keysym>>,
    held: Vec<Held>,
}

/// The keyboard as it is at one moment.
struct Moment {
    keymap: Keymap,
    /// Modifiers that are in effect, and of those the ones that are locked.
    effective: Modifiers,
    locked: Modifiers,
}

impl Keyboard {
    /// Types a text.
    pub(super) fn text(&mut self, display: &mut Display, text: &str) -> Result<(), InputError> {
        let keysyms = text_keysyms(text)?;
        let moment = self.read(display)?;
        let batches = keymap::plan(&moment.keymap, &keysyms, moment.effective & !LOCK, &mut self.loans)?;
        let caps = moment.locked & LOCK != 0;
        if caps {
            lock_caps(display, false)?;
        }
        let typed = batches.iter().try_for_each(|batch| {
            self.prepare(display, batch)?;
            for stroke in &batch.strokes {
                strike(display, stroke)?;
                display.pause(KEY_PAUSE)?;
            }
            display.sync()
        });
        if caps {
            lock_caps(display, true)?;
        }
        Ok(typed?)
    }

    /// Presses keys together, in order, and releases them in reverse.
    pub(super) fn chord(&mut self, display: &mut Display, names: &[String]) -> Result<(), InputError> {
        let strokes = self.strokes(display, &chord_keysyms(names)?)?;
        let mut down = Vec::new();
        let pressed = self.press(display, &strokes, &mut down).and_then(|()| display.pause(CHORD_HOLD));
        // Whatever happened, what went down comes up again.
        let released = down.iter().rev().try_for_each(|code| display.key(*code, Motion::Release));
        pressed.and(released)?;
        Ok(display.sync()?)
    }

    /// Presses keys and leaves them down.
    pub(super) fn hold(&mut self, display: &mut Display, names: &[String]) -> Result<(), InputError> {
        let keysyms = chord_keysyms(names)?;
        let strokes = self.strokes(display, &keysyms)?;
        for (keysym, stroke) in keysyms.into_iter().zip(&strokes) {
            let mut codes = Vec::new();
            let pressed = self.press(display, std::slice::from_ref(stroke), &mut codes);
            self.held.push(Held { keysym, codes });
            pressed?;
        }
        Ok(display.sync()?)
    }

    /// Releases held keys; one that is not held stays as it is.
    pub(super) fn release(&mut self, display: &mut Display, names: &[String]) -> Result<(), InputError> {
        let keysyms = chord_keysyms(names)?;
        let (going, staying) =
            std::mem::take(&mut self.held).into_iter().partition(|held| keysyms.contains(&held.keysym));
        self.held = staying;
        Ok(let_go(display, going)?)
    }

    /// Releases everything that is held.
    pub(super) fn release_all(&mut self, display: &Display) -> Result<(), ScreenError> {
        let_go(display, std::mem::take(&mut self.held))
    }

    /// Gives the borrowed keys back what they gave before.
    pub(super) fn give_back(&mut self, display: &Display) -> Result<(), ScreenError> {
        self.loans.clear();
        for (code, keysyms) in std::mem::take(&mut self.originals) {
            map_keys(display, code, keysyms.len(), &keysyms)?;
        }
        display.sync()
    }

    /// Presses strokes, and notes what went down.
    fn press(&self, display: &Display, strokes: &[Stroke], down: &mut Vec<Keycode>) -> Result<(), ScreenError> {
        for stroke in strokes {
            for code in stroke.with.iter().chain([&stroke.code]) {
                // A modifier that is down already must not come up before the others.
                if !down.contains(code) && !self.held.iter().any(|held| held.codes.contains(code)) {
                    down.push(*code);
                    display.key(*code, Motion::Press)?;
                    display.pause(KEY_PAUSE)?;
                }
            }
        }
        Ok(())
    }

    /// The strokes for keys that are down at the same time.
    fn strokes(&mut self, display: &mut Display, keysyms: &[Keysym]) -> Result<Vec<Stroke>, InputError> {
        let moment = self.read(display)?;
        let down = moment.locked & !LOCK;
        let others: Vec<Keysym> = keysyms.iter().copied().filter(|keysym| !keysym::is_modifier(*keysym)).collect();
        let mut batches = keymap::plan(&moment.keymap, &others, down, &mut self.loans)?;
        let (Some(batch), true) = (batches.pop(), batches.is_empty()) else {
            return Err(InputError::Refused("the keyboard has too few keys to spare for these at once".to_owned()));
        };
        let mut typed = batch.strokes.iter().cloned();
        let mut strokes = Vec::with_capacity(keysyms.len());
        for keysym in keysyms {
            let stroke =
                if keysym::is_modifier(*keysym) { moment.keymap.key(*keysym).map(Stroke::plain) } else { typed.next() };
            let missing = || InputError::Refused(format!("the keyboard has no key for the modifier 0x{keysym:x}"));
            strokes.push(stroke.ok_or_else(missing)?);
        }
        self.prepare(display, &batch)?;
        Ok(strokes)
    }

    /// Puts a batch's keysyms on the keys borrowed for them.
    fn prepare(&mut self, display: &mut Display, batch: &Batch) -> Result<(), ScreenError> {
        if batch.assign.is_empty() {
            return Ok(());
        }
        if batch.reuses {
            display.rest(REUSE_REST)?;
        }
        for loan in &batch.assign {
            if let Entry::Vacant(entry) = self.originals.entry(loan.code) {
                let before = display
                    .link
                    .client
                    .get_keyboard_mapping(loan.code, 1)
                    .map_err(during(BORROWING))?
                    .reply()
                    .map_err(reply(BORROWING))?;
                entry.insert(before.keysyms);
            }
        }
        // Every request makes every program read the whole mapping again, so neighbouring
        // keys go in one.
        for run in keymap::runs(&batch.assign) {
            // The same on both levels: alone, the server would add the other case.
            let keysyms: Vec<Keysym> = run.iter().flat_map(|loan| [loan.keysym, loan.keysym]).collect();
            map_keys(display, run[0].code, 2, &keysyms)?;
        }
        display.sync()?;
        display.pause(BORROW_PAUSE)
    }

    /// Reads the mapping and the state as they are now: any program may have changed them.
    fn read(&mut self, display: &Display) -> Result<Moment, ScreenError> {
        let client = &display.link.client;
        let parts = xkb::MapPart::KEY_TYPES | xkb::MapPart::KEY_SYMS | xkb::MapPart::MODIFIER_MAP;
        let none = xkb::MapPart::from(0_u16);
        let asked = client
            .xkb_get_map(CORE_KEYBOARD, parts, none, 0, 0, 0, 0, 0, 0, 0, 0, xkb::VMod::from(0_u16), 0, 0, 0, 0, 0, 0)
            .map_err(during(READING))?;
        let state = client.xkb_get_state(CORE_KEYBOARD).map_err(during(READING))?;
        let map = asked.reply().map_err(reply(READING))?;
        let state = state.reply().map_err(reply(READING))?;
        let keymap = Keymap::new(keys(&map, usize::from(u8::from(state.group))));
        // Who loads another layout takes the borrowed keys away from us.
        self.loans.retain(|loan| keymap.gives_only(loan.code, loan.keysym));
        let loans = &self.loans;
        self.originals.retain(|code, _| loans.iter().any(|loan| loan.code == *code));
        Ok(Moment { keymap, effective: bits(state.mods), locked: bits(state.locked_mods) })
    }
}

/// The keysyms of a text; refused when it holds what is no text.
fn text_keysyms(text: &str) -> Result<Vec<Keysym>, InputError> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let count = text.chars().count();
    if count > MAX_TEXT {
        return Err(InputError::Refused(format!("a text of {count} characters: at most {MAX_TEXT} are typed at once")));
    }
    text.chars()
        .enumerate()
        .map(|(index, character)| {
            keysym::of_text(character).ok_or_else(|| {
                let code = u32::from(character);
                InputError::Refused(format!("the control character U+{code:04X} (character {}) is no text", index + 1))
            })
        })
        .collect()
}

/// The keysyms of a chord's names. With Ctrl, Alt or Super a letter means its key, whatever
/// its case: `ctrl+S` is what a menu calls Ctrl+S.
fn chord_keysyms(names: &[String]) -> Result<Vec<Keysym>, InputError> {
    let known = |name: &String| {
        keysym::named(name).ok_or_else(|| InputError::Refused(format!("unknown key `{}`", excerpt(name))))
    };
    let keysyms: Vec<Keysym> = names.iter().map(known).collect::<Result<_, _>>()?;
    if keysyms.iter().any(|keysym| keysym::makes_shortcuts(*keysym)) {
        Ok(keysyms.into_iter().map(keysym::small).collect())
    } else {
        Ok(keysyms)
    }
}

/// A name as it can be shown: cut, and without control characters.
fn excerpt(name: &str) -> String {
    name.chars().take(40).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Presses and releases one stroke.
fn strike(display: &Display, stroke: &Stroke) -> Result<(), ScreenError> {
    for code in &stroke.with {
        display.key(*code, Motion::Press)?;
    }
    display.key(stroke.code, Motion::Press)?;
    display.key(stroke.code, Motion::Release)?;
    stroke.with.iter().rev().try_for_each(|code| display.key(*code, Motion::Release))
}

fn let_go(display: &Display, held: Vec<Held>) -> Result<(), ScreenError> {
    for code in held.iter().rev().flat_map(|held| held.codes.iter().rev()) {
        display.key(*code, Motion::Release)?;
    }
    display.sync()
}

fn lock_caps(display: &Display, on: bool) -> Result<(), ScreenError> {
    let none = ModMask::from(0_u16);
    let locks = if on { ModMask::LOCK } else { none };
    let group = xkb::Group::M1;
    display
        .link
        .client
        .xkb_latch_lock_state(CORE_KEYBOARD, ModMask::LOCK, locks, false, group, none, false, 0)
        .map_err(during("unlocking the capitals"))?;
    display.sync()
}

/// Maps neighbouring keys, from `first` on, each to `width` keysyms.
fn map_keys(display: &Display, first: Keycode, width: usize, keysyms: &[Keysym]) -> Result<(), ScreenError> {
    let narrow = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let count = narrow(keysyms.len() / width.max(1));
    display.link.client.change_keyboard_mapping(count, first, narrow(width), keysyms).map_err(during(BORROWING))?;
    Ok(())
}

fn bits(mask: ModMask) -> Modifiers {
    // The high byte holds the buttons, which are no modifiers.
    u16::from(mask).to_le_bytes()[0]
}

/// The server's mapping in the form of [`Keymap`], as seen in one group.
fn keys(map: &xkb::GetMapReply, group: usize) -> Vec<Key> {
    let types = map.map.types_rtrn.as_deref().unwrap_or_default();
    let symbols = map.map.syms_rtrn.as_deref().unwrap_or_default();
    let modifiers: BTreeMap<Keycode, Modifiers> =
        map.map.modmap_rtrn.iter().flatten().map(|entry| (entry.keycode, bits(entry.mods))).collect();
    symbols
        .iter()
        .zip(map.first_key_sym..=u8::MAX)
        .map(|(symbols, code)| {
            let group = key_group(symbols.group_info, group);
            let width = usize::from(symbols.width);
            let keysyms = group.and_then(|group| symbols.syms.get(group * width..(group + 1) * width));
            let kind = group.and_then(|group| types.get(usize::from(*symbols.kt_index.get(group)?)));
            Key {
                code,
                modifiers: modifiers.get(&code).copied().unwrap_or(0),
                kind: kind.map(key_type).unwrap_or_default(),
                keysyms: keysyms.unwrap_or_default().to_vec(),
            }
        })
        .collect()
}

/// Which of a key's own groups is on: a key with fewer groups than the keyboard says what
/// happens beyond them (XKB protocol, "GroupInfo").
fn key_group(info: u8, group: usize) -> Option<usize> {
    let count = usize::from(info & 0x0f);
    match (count, info >> 6) {
        (0, _) => None,
        _ if group < count => Some(group),
        (_, 1) => Some(count - 1),
        (_, 2) => Some(usize::from(info >> 4 & 3)).filter(|group| *group < count).or(Some(0)),
        _ => Some(group % count),
    }
}

fn key_type(kind: &xkb::KeyType) -> KeyType {
    KeyType {
        mask: bits(kind.mods_mask),
        levels: kind
            .map
            .iter()
            .filter(|entry| entry.active)
            .map(|entry| (bits(ModMask::from(u16::from(entry.mods_mask))), usize::from(entry.level)))
            .collect(),
    }
}
