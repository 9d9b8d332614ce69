//! Names of keys: what agents call a key, to the keysym that X knows.
//!
//! Three kinds of names are understood: X's own (`Return`, `adiaeresis`, `KP_Enter`,
//! `U20AC`), the words that agents and other tools use (`ctrl`, `enter`, `page down`,
//! `arrowleft`), in any case and with or without `_`, `-` and spaces, and a single
//! character for itself.

use super::names::{ASCII, LATIN_1, WORDS};

/// A keysym of the X protocol.
pub(super) type Keysym = u32;

pub(super) const SHIFT_L: Keysym = 0xffe1;
pub(super) const SHIFT_R: Keysym = 0xffe2;
pub(super) const CONTROL_L: Keysym = 0xffe3;
pub(super) const CONTROL_R: Keysym = 0xffe4;
pub(super) const CAPS_LOCK: Keysym = 0xffe5;
pub(super) const ALT_L: Keysym = 0xffe9;
pub(super) const ALT_R: Keysym = 0xffea;
pub(super) const SUPER_L: Keysym = 0xffeb;
pub(super) const SUPER_R: Keysym = 0xffec;
pub(super) const META_L: Keysym = 0xffe7;
pub(super) const META_R: Keysym = 0xffe8;
pub(super) const ISO_LEVEL3_SHIFT: Keysym = 0xfe03;
pub(super) const RETURN: Keysym = 0xff0d;
pub(super) const TAB: Keysym = 0xff09;

/// The keysym of a key's name; `None` for a name that nobody knows.
pub(super) fn named(name: &str) -> Option<Keysym> {
    let mut characters = name.chars();
    if let (Some(character), None) = (characters.next(), characters.next()) {
        return of_char(character).or(match character {
            '\n' | '\r' => Some(RETURN),
            '\t' => Some(TAB),
            _ => None,
        });
    }
    if name.is_empty() {
        return None;
    }
    let position = |names: &[&str]| names.iter().position(|known| *known == name);
    if let Some(index) = position(&ASCII) {
        return u32::try_from(index).ok().map(|index| 0x20 + index);
    }
    if let Some(index) = position(&LATIN_1) {
        return u32::try_from(index).ok().map(|index| 0xa0 + index);
    }
    let word: String = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect();
    if word.is_empty() {
        return None;
    }
    if let Some(index) = ASCII.iter().position(|known| *known == word) {
        return u32::try_from(index).ok().map(|index| 0x20 + index);
    }
    WORDS.iter().find(|(known, _)| *known == word).map(|(_, keysym)| *keysym).or_else(|| numbered(&word))
}

/// Families of names with a number: `f5`, `kp3`, `numpad3`, `num3`, `u20ac`.
fn numbered(word: &str) -> Option<Keysym> {
    let number = |prefix: &str, limit: u32| {
        let digits = word.strip_prefix(prefix)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0') || digits == "0";
        digits.parse::<u32>().ok().filter(|number| plain && *number <= limit)
    };
    if let Some(index) = number("f", 35).filter(|index| *index > 0) {
        return Some(0xffbd + index);
    }
    if let Some(digit) = ["kp", "numpad", "num"].iter().find_map(|prefix| number(prefix, 9)) {
        return Some(0xffb0 + digit);
    }
    let code = word.strip_prefix("u+").or_else(|| word.strip_prefix('u'))?;
    if !(4..=6).contains(&code.len()) || !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    of_char(char::from_u32(u32::from_str_radix(code, 16).ok()?)?)
}

/// The keysym of a character; `None` for control characters.
pub(super) fn of_char(character: char) -> Option<Keysym> {
    match u32::from(character) {
        _ if character.is_control() => None,
        code @ (0x20..=0xff | 0x20ac) => Some(code),
        code => Some(0x0100_0000 + code),
    }
}

/// The keysym that types a character of a text: as [`of_char`], and the keys for the end
/// of a line and for a tabulator.
pub(super) fn of_text(character: char) -> Option<Keysym> {
    match character {
        '\n' => Some(RETURN),
        '\t' => Some(TAB),
        _ => of_char(character),
    }
}

/// Whether the key only changes what others mean.
pub(super) const fn is_modifier(keysym: Keysym) -> bool {
    matches!(keysym, 0xffe1..=0xffee | 0xfe01..=0xfe13 | 0xff7e | 0xff7f)
}

/// Whether the key makes a shortcut of the keys with it, for which a letter's case
/// does not count.
pub(super) const fn makes_shortcuts(keysym: Keysym) -> bool {
    matches!(keysym, CONTROL_L | CONTROL_R | ALT_L | ALT_R | SUPER_L | SUPER_R | META_L | META_R)
}

/// The small letter of a capital one in Latin-1; any other keysym as it is.
pub(super) const fn small(keysym: Keysym) -> Keysym {
    match keysym {
        0x41..=0x5a | 0xc0..=0xd6 | 0xd8..=0xde => keysym + 0x20,
        _ => keysym,
    }
}

/// Whether the key is one of the number pad.
pub(super) const fn is_keypad(keysym: Keysym) -> bool {
    matches!(keysym, 0xff80..=0xffbd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_are_known() {
        for (name, keysym) in [
            ("Return", RETURN),
            ("enter", RETURN),
            ("ENTER", RETURN),
            ("\n", RETURN),
            ("ctrl", CONTROL_L),
            ("Control_L", CONTROL_L),
            ("cmd", SUPER_L),
            ("Page_Up", 0xff55),
            ("page up", 0xff55),
            ("pgdn", 0xff56),
            ("f1", 0xffbe),
            ("F24", 0xffd5),
            ("plus", 0x2b),
            ("Plus", 0x2b),
            ("-", 0x2d),
            ("a", 0x61),
            ("A", 0x41),
            ("ü", 0xfc),
            ("Adiaeresis", 0xc4),
            ("adiaeresis", 0xe4),
            ("ydiaeresis", 0xff),
            ("€", 0x20ac),
            ("я", 0x0100_044f),
            ("😀", 0x0101_f600),
            ("U20AC", 0x20ac),
            ("U+1F600", 0x0101_f600),
            ("KP_5", 0xffb5),
            ("kp_add", 0xffab),
            ("numpad0", 0xffb0),
            ("bracketleft", 0x5b),
            ("asciitilde", 0x7e),
            ("space", 0x20),
            (" ", 0x20),
            ("braceleft", 0x7b),
            ("at", 0x40),
            ("grave", 0x60),
            ("question", 0x3f),
            ("colon", 0x3a),
        ] {
            assert_eq!(named(name), Some(keysym), "{name}");
        }
    }

    #[test]
    fn other_names_are_not() {
        for name in ["", "__", "banana", "f0", "f36", "f01", "kp_10", "u+110000", "ud800", "\u{7}", "ctrl+s", "uabc"] {
            assert_eq!(named(name), None, "{name}");
        }
    }

    #[test]
    fn control_characters_are_no_text_but_line_ends_and_tabulators() {
        assert_eq!(of_text('\n'), Some(RETURN));
        assert_eq!(of_text('\t'), Some(TAB));
        for character in ['\u{0}', '\u{8}', '\u{1b}', '\u{7f}', '\u{85}'] {
            assert_eq!(of_text(character), None);
        }
    }

    #[test]
    fn the_tables_start_and_end_where_they_should() {
        assert_eq!((named("space"), named("asciitilde")), (Some(0x20), Some(0x7e)));
        assert_eq!((named("at"), named("bracketleft"), named("grave")), (Some(0x40), Some(0x5b), Some(0x60)));
        assert_eq!((named("nobreakspace"), named("Agrave"), named("agrave")), (Some(0xa0), Some(0xc0), Some(0xe0)));
    }
}
