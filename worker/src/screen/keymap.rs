//! A keyboard's mapping as data: which keys to press for a keysym, and which keycodes to
//! borrow for the keysyms that are on no key.
//!
//! Pure. What a key gives depends on the group (layout) that is on and on a level, which
//! the key's type chooses by the modifiers that are down.

use super::keysym::{self, Keysym};

/// A key of the keyboard, by its number in the protocol.
pub(super) type Keycode = u8;

/// A set of modifiers, as the protocol's bits.
pub(super) type Modifiers = u8;

pub(super) const SHIFT: Modifiers = 1;
pub(super) const LOCK: Modifiers = 2;

/// How a key's level follows from the modifiers that are down.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyType {
    /// The modifiers that count.
    pub(super) mask: Modifiers,
    /// Which level each of their combinations gives; others give the first.
    pub(super) levels: Vec<(Modifiers, usize)>,
}

impl KeyType {
    fn level(&self, down: Modifiers) -> usize {
        let counted = down & self.mask;
        self.levels.iter().find(|(modifiers, _)| *modifiers == counted).map_or(0, |(_, level)| *level)
    }
}

/// What one key gives in the group that is on.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The key.
    pub(super) code: Keycode,
    /// The modifiers that it stands for, if any.
    pub(super) modifiers: Modifiers,
    /// Its type in this group.
    pub(super) kind: KeyType,
    /// The keysym of each level; zero for none.
    pub(super) keysyms: Vec<Keysym>,
}

impl Key {
    /// Whether nobody misses the key when it is borrowed: it gives nothing, or only the
    /// keysyms of a multimedia keyboard, and is no modifier.
    fn is_spare(&self) -> bool {
        self.modifiers == 0 && self.keysyms.iter().all(|keysym| matches!(keysym, 0 | 0x1008_ff00..=0x1008_ffff))
    }

    fn is_empty(&self) -> bool {
        self.keysyms.iter().all(|keysym| *keysym == 0)
    }
}

/// One key to press, with the modifier keys that must be down with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stroke {
    /// The key.
    pub(super) code: Keycode,
    /// The modifier keys.
    pub(super) with: Vec<Keycode>,
}

impl Stroke {
    /// A key without modifiers.
    pub(super) const fn plain(code: Keycode) -> Self {
        Self { code, with: Vec::new() }
    }
}

/// The mapping of all keys in the group that is on.
#[derive(Clone, Debug, Default)]
pub(super) struct Keymap {
    keys: Vec<Key>,
    /// The keys that change a level: a modifier bit and the key to press for it.
    shifts: Vec<(Modifiers, Keycode)>,
}

impl Keymap {
    /// The mapping of these keys.
    pub(super) fn new(keys: Vec<Key>) -> Self {
        let shift = |keysym: Keysym, wanted: Modifiers| {
            keys.iter()
                .find(|key| key.keysyms.first() == Some(&keysym) && key.modifiers & wanted != 0)
                .map(|key| (key.modifiers, key.code))
        };
        let shifts =
            shift(keysym::SHIFT_L, SHIFT).into_iter().chain(shift(keysym::ISO_LEVEL3_SHIFT, !(SHIFT | LOCK))).collect();
        Self { keys, shifts }
    }

    /// The stroke for a keysym while the modifiers `down` are down anyway: the one with
    /// the fewest modifier keys, and of those the one on the lowest keycode.
    pub(super) fn stroke(&self, keysym: Keysym, down: Modifiers) -> Option<Stroke> {
        let mut ways: Vec<(Modifiers, Vec<Keycode>)> = vec![(0, Vec::new())];
        for (bit, code) in &self.shifts {
            for index in 0..ways.len() {
                let (bits, mut codes) = ways[index].clone();
                codes.push(*code);
                ways.push((bits | bit, codes));
            }
        }
        ways.sort_by_key(|(_, codes)| codes.len());
        ways.into_iter().find_map(|(bits, with)| {
            let gives = |key: &&Key| key.keysyms.get(key.kind.level(down | bits)) == Some(&keysym);
            self.keys.iter().find(gives).map(|key| Stroke { code: key.code, with })
        })
    }

    /// The key that has the keysym on its first level.
    pub(super) fn key(&self, keysym: Keysym) -> Option<Keycode> {
        self.keys.iter().find(|key| key.keysyms.first() == Some(&keysym)).map(|key| key.code)
    }

    /// Whether a key gives this keysym, and no other, whatever is down.
    pub(super) fn gives_only(&self, code: Keycode, keysym: Keysym) -> bool {
        self.keys.iter().any(|key| {
            key.code == code && key.keysyms.first() == Some(&keysym) && key.keysyms.iter().all(|other| *other == keysym)
        })
    }

    /// The mapping without the borrowed keys.
    fn without(&self, loans: &[Loan]) -> Self {
        let kept = |key: &&Key| loans.iter().all(|loan| loan.code != key.code);
        Self { keys: self.keys.iter().filter(kept).cloned().collect(), shifts: self.shifts.clone() }
    }

    /// The keys that can be borrowed: first those that give nothing.
    fn spare(&self) -> Vec<Keycode> {
        let (empty, other): (Vec<&Key>, Vec<&Key>) =
            self.keys.iter().rev().filter(|key| key.is_spare()).partition(|key| key.is_empty());
        empty.into_iter().chain(other).map(|key| key.code).collect()
    }
}

/// A keycode that we have given a keysym for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loan {
    /// The borrowed key.
    pub(super) code: Keycode,
    /// What it gives for now.
    pub(super) keysym: Keysym,
}

/// A part of a text (or a chord) that one mapping can type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    /// Keysyms to be put on borrowed keys before it.
    pub(super) assign: Vec<Loan>,
    /// Whether one of those keys gave something else that a program may not have read
    /// yet: a program asks for the mapping when it handles a key, not when it is pressed.
    pub(super) reuses: bool,
    /// What to press.
    pub(super) strokes: Vec<Stroke>,
}

/// Loans by runs of neighbouring keys, in the order of their codes.
pub(super) fn runs(loans: &[Loan]) -> Vec<Vec<Loan>> {
    let mut sorted = loans.to_vec();
    sorted.sort_by_key(|loan| loan.code);
    sorted.chunk_by(|one, next| one.code.checked_add(1) == Some(next.code)).map(<[Loan]>::to_vec).collect()
}

/// Why keysyms cannot be pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlanError {
    /// Not one key is to spare.
    #[error("the keyboard has no key to spare for it")]
    NoSpareKey,
}

/// Plans the strokes for keysyms, in order, while `down` are down anyway. `loans` are the
/// keys borrowed by now, the least recently used first; it is brought up to date.
///
/// A keysym that is on the keyboard is typed as a person would; the others go on borrowed
/// keys, as many as there are, and then the next batch takes them again.
pub(super) fn plan(
    keymap: &Keymap,
    keysyms: &[Keysym],
    down: Modifiers,
    loans: &mut Vec<Loan>,
) -> Result<Vec<Batch>, PlanError> {
    // What a borrowed key gives may change below, so it is looked up in `loans` alone.
    let keymap = keymap.without(loans);
    let mut free = keymap.spare();
    free.reverse();
    let mut batches = Vec::new();
    let mut batch = Batch::default();
    // The keys that this batch presses already, and so may not be given another keysym.
    let mut pressed: Vec<Keycode> = Vec::new();
    for keysym in keysyms {
        if let Some(index) = loans.iter().position(|loan| loan.keysym == *keysym) {
            let loan = loans.remove(index);
            loans.push(loan);
            pressed.push(loan.code);
            batch.strokes.push(Stroke::plain(loan.code));
            continue;
        }
        // A key of the number pad that needs Shift would be another shortcut with it.
        let stroke = keymap.stroke(*keysym, down);
        if let Some(stroke) = stroke.filter(|stroke| stroke.with.is_empty() || !keysym::is_keypad(*keysym)) {
            batch.strokes.push(stroke);
            continue;
        }
        let code = if let Some(code) = free.pop() {
            code
        } else {
            if loans.iter().all(|loan| pressed.contains(&loan.code)) {
                if loans.is_empty() {
                    return Err(PlanError::NoSpareKey);
                }
                batches.push(std::mem::take(&mut batch));
                pressed.clear();
            }
            let index = loans.iter().position(|loan| !pressed.contains(&loan.code)).unwrap_or(0);
            batch.reuses = true;
            loans.remove(index).code
        };
        let loan = Loan { code, keysym: *keysym };
        loans.push(loan);
        pressed.push(code);
        batch.assign.push(loan);
        batch.strokes.push(Stroke::plain(code));
    }
    batches.push(batch);
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL3: Modifiers = 0x80;

    fn two_level() -> KeyType {
        KeyType { mask: SHIFT, levels: vec![(SHIFT, 1)] }
    }

    fn four_level() -> KeyType {
        KeyType { mask: SHIFT | LEVEL3, levels: vec![(SHIFT, 1), (LEVEL3, 2), (SHIFT | LEVEL3, 3)] }
    }

    fn key(code: Keycode, kind: KeyType, keysyms: &[Keysym]) -> Key {
        Key { code, modifiers: 0, kind, keysyms: keysyms.to_vec() }
    }

    fn german() -> Keymap {
        Keymap::new(vec![
            key(8, KeyType::default(), &[]),
            key(24, four_level(), &[0x71, 0x51, 0x40, 0x7d9]),
            key(29, two_level(), &[0x7a, 0x5a]),
            Key { code: 50, modifiers: SHIFT, kind: two_level(), keysyms: vec![keysym::SHIFT_L, 0] },
            Key { code: 92, modifiers: LEVEL3, kind: KeyType::default(), keysyms: vec![keysym::ISO_LEVEL3_SHIFT] },
            key(121, KeyType::default(), &[0x1008_ff12]),
            key(248, KeyType::default(), &[0]),
        ])
    }

    #[test]
    fn a_keysym_is_found_with_the_fewest_modifiers() {
        let keymap = german();
        assert_eq!(keymap.stroke(0x7a, 0), Some(Stroke::plain(29)));
        assert_eq!(keymap.stroke(0x5a, 0), Some(Stroke { code: 29, with: vec![50] }));
        assert_eq!(keymap.stroke(0x40, 0), Some(Stroke { code: 24, with: vec![92] }));
        assert_eq!(keymap.stroke(0x7d9, 0), Some(Stroke { code: 24, with: vec![50, 92] }));
        assert_eq!(keymap.stroke(0x62, 0), None);
    }

    #[test]
    fn a_held_modifier_is_reckoned_with() {
        let keymap = german();
        assert_eq!(keymap.stroke(0x5a, SHIFT), Some(Stroke::plain(29)));
        assert_eq!(keymap.stroke(0x7a, SHIFT), None);
    }

    #[test]
    fn what_is_on_no_key_goes_on_borrowed_ones_and_stays_there() {
        let keymap = german();
        let mut loans = Vec::new();
        let batches = plan(&keymap, &[0x7a, 0xe9, 0xe9, 0xe8], 0, &mut loans).unwrap();
        let [batch] = batches.as_slice() else { panic!("one batch is enough: {batches:?}") };
        assert_eq!(batch.assign, [Loan { code: 248, keysym: 0xe9 }, Loan { code: 8, keysym: 0xe8 }]);
        assert!(!batch.reuses);
        assert_eq!(batch.strokes, [29, 248, 248, 8].map(Stroke::plain));
        let again = plan(&keymap, &[0xe8], 0, &mut loans).unwrap();
        assert_eq!(again, [Batch { strokes: vec![Stroke::plain(8)], ..Batch::default() }]);
    }

    #[test]
    fn when_the_keys_are_used_up_a_new_batch_takes_the_least_recently_used() {
        let keymap = german();
        let mut loans = Vec::new();
        let text: Vec<Keysym> = (0x0100_4e00..0x0100_4e05).collect();
        let batches = plan(&keymap, &text, 0, &mut loans).unwrap();
        assert_eq!(batches.iter().map(|batch| batch.assign.len()).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(batches.iter().map(|batch| batch.reuses).collect::<Vec<_>>(), [false, true]);
        assert_eq!(batches[1].assign.iter().map(|loan| loan.code).collect::<Vec<_>>(), [248, 8]);
        assert_eq!(loans.len(), 3);
    }

    #[test]
    fn a_borrowed_key_is_never_taken_for_what_it_gave_before() {
        let mut keys = german().keys;
        keys.retain(|key| !key.is_spare());
        keys.push(key(248, two_level(), &[0xe9, 0xe9]));
        let mut loans = vec![Loan { code: 248, keysym: 0xe9 }];
        let batches = plan(&Keymap::new(keys), &[0xe8, 0xe9], 0, &mut loans).unwrap();
        let assigned: Vec<_> = batches.iter().map(|batch| batch.assign.clone()).collect();
        assert_eq!(assigned, [vec![Loan { code: 248, keysym: 0xe8 }], vec![Loan { code: 248, keysym: 0xe9 }]]);
    }

    #[test]
    fn a_digit_of_the_number_pad_is_not_typed_with_shift() {
        let mut keys = german().keys;
        keys.push(key(87, two_level(), &[0xff9c, 0xffb1]));
        let batches = plan(&Keymap::new(keys), &[0xffb1, 0xff9c], 0, &mut Vec::new()).unwrap();
        assert_eq!(batches[0].strokes, [248, 87].map(Stroke::plain));
    }

    #[test]
    fn neighbouring_keys_are_one_run() {
        let loans: Vec<Loan> = [9, 255, 8, 12].map(|code| Loan { code, keysym: 1 }).to_vec();
        let codes: Vec<Vec<Keycode>> =
            runs(&loans).iter().map(|run| run.iter().map(|loan| loan.code).collect()).collect();
        assert_eq!(codes, [vec![8, 9], vec![12], vec![255]]);
    }

    #[test]
    fn a_keyboard_without_a_key_to_spare_is_an_error() {
        let keymap = Keymap::new(vec![key(29, two_level(), &[0x7a, 0x5a])]);
        assert_eq!(plan(&keymap, &[0xe9], 0, &mut Vec::new()), Err(PlanError::NoSpareKey));
    }
}
