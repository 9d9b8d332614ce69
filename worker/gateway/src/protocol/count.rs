//! How many tokens a piece of input is at most.
//!
//! Every tokenizer in use falls back to bytes, so no text has more tokens than bytes. Around
//! texts there is what a vendor's template adds; the allowances here are several times what the
//! vendors publish. Images are counted by the price's own rule, from the size that is read out
//! of their first bytes.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use longhaul_core::price::ImageRule;
use serde_json::Value;

/// Tokens around a whole request.
pub(crate) const REQUEST: u64 = 64;

/// Tokens around a message.
pub(crate) const MESSAGE: u64 = 16;

/// Tokens around a part of a message.
pub(crate) const PART: u64 = 8;

/// Tokens around the declaration of a tool.
pub(crate) const TOOL: u64 = 32;

/// Whether that reads base64 leniently: only the first bytes of an image are of interest here.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// How much of an image is looked at: a JPEG's size stands behind its metadata.
const HEAD: usize = 1 << 17;

/// Text that a model is shown as it is.
pub(crate) const fn text(text: &str) -> u64 {
    text.len() as u64
}

/// A value that a model is shown as JSON, of whatever form: each value with a separator and
/// white space, and all that is not ASCII as an escape.
pub(crate) fn structured(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) => 7,
        Value::Number(number) => number.to_string().len() as u64 + 2,
        Value::String(text) => escaped(text) + 2,
        Value::Array(list) => 4 + list.iter().map(structured).sum::<u64>(),
        Value::Object(object) => {
            4 + object.iter().map(|(key, value)| escaped(key) + 4 + structured(value)).sum::<u64>()
        }
    }
}

/// The length of a string in JSON of ASCII alone, with its quotes.
fn escaped(text: &str) -> u64 {
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\') {
        return text.len() as u64 + 2;
    }
    let of = |char: char| match char {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        ' '..='~' => 1,
        '\u{10000}'.. => 12,
        _ => 6,
    };
    2 + text.chars().map(of).sum::<u64>()
}

/// An image in base64.
pub(crate) fn image(rule: ImageRule, base64: &str) -> u64 {
    rule.bound(size(base64)) + PART
}

/// An image in a `data:` address; none if it is another address.
pub(crate) fn data_url(rule: ImageRule, url: &str) -> Option<u64> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(',')?;
    (kind.starts_with("image/") && kind.ends_with(";base64")).then(|| image(rule, data))
}

/// The pixels of an image across and down, as its first bytes say.
fn size(base64: &str) -> Option<(u32, u32)> {
    let whole = base64.len().min(HEAD) / 4 * 4;
    let head = base64.get(..64.min(whole))?;
    let start = BASE64.decode(head).ok()?;
    if start.starts_with(&[0xFF, 0xD8]) {
        return jpeg(&BASE64.decode(base64.get(..whole)?).ok()?);
    }
    header(&start)
}

fn header(start: &[u8]) -> Option<(u32, u32)> {
    if start.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Some((big_endian(start.get(16..20)?), big_endian(start.get(20..24)?)));
    }
    if start.starts_with(b"GIF8") {
        return Some((little_endian(start.get(6..8)?), little_endian(start.get(8..10)?)));
    }
    if start.starts_with(b"RIFF") && start.get(8..12)? == b"WEBP" {
        return match start.get(12..16)? {
            b"VP8 " => Some((little_endian(start.get(26..28)?) & 0x3FFF, little_endian(start.get(28..30)?) & 0x3FFF)),
            b"VP8L" => {
                let bits = little_endian(start.get(21..25)?);
                Some(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
            }
            b"VP8X" => Some((little_endian(start.get(24..27)?) + 1, little_endian(start.get(27..30)?) + 1)),
            _ => None,
        };
    }
    None
}

/// The first frame header of a JPEG.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        if *bytes.get(at)? != 0xFF {
            return None;
        }
        let marker = *bytes.get(at + 1)?;
        match marker {
            0xFF => at += 1,
            0x01 | 0xD0..=0xD7 => at += 2,
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                return Some((big_endian(bytes.get(at + 7..at + 9)?), big_endian(bytes.get(at + 5..at + 7)?)));
            }
            _ => at += 2 + usize::try_from(big_endian(bytes.get(at + 2..at + 4)?)).ok()?,
        }
    }
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const RULE: ImageRule = ImageRule::Area { pixels: 750, most: 1600 };

    #[test]
    fn sizes_are_read_out_of_each_format() {
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &[0, 0, 4, 0, 0, 0, 3, 0, 8, 2, 0, 0, 0]].concat();
        let gif = b"GIF89a\x20\x03\x58\x02\0\0\0".to_vec();
        let mut jpeg = vec![0xFF, 0xD8, 0xFF, 0xE1, 0x03, 0x02];
        jpeg.extend(vec![7; 0x300]);
        jpeg.extend([0xFF, 0xC2, 0, 17, 8, 0x02, 0x58, 0x03, 0x20, 3, 1]);
        let webp = |kind: &[u8], rest: &[u8]| [b"RIFF\0\0\0\0WEBP", kind, b"\0\0\0\0", rest].concat();
        let lossy = webp(b"VP8 ", &[0, 0, 0, 0x9D, 1, 0x2A, 0x20, 0x03, 0x58, 0x42]);
        let lossless = webp(b"VP8L", &[0x2F, 0x1F, 0x03, 0x96, 0]);
        let extended = webp(b"VP8X", &[0, 0, 0, 0, 0x1F, 3, 0, 0x57, 2, 0]);
        for (name, bytes, expected) in [
            ("png", png, (1024, 768)),
            ("gif", gif, (800, 600)),
            ("jpeg", jpeg, (800, 600)),
            ("lossy webp", lossy, (800, 600)),
            ("lossless webp", lossless, (800, 601)),
            ("extended webp", extended, (800, 600)),
        ] {
            assert_eq!(size(&BASE64.encode(bytes)), Some(expected), "{name}");
        }
        assert_eq!(size("AAAA"), None);
        assert_eq!(image(RULE, "no image at all"), 1600 + PART);
    }

    #[test]
    fn only_data_of_images_is_an_image() {
        assert_eq!(data_url(RULE, "data:image/png;base64,AAAA"), Some(1600 + PART));
        assert_eq!(data_url(RULE, "https://host/image.png"), None);
        assert_eq!(data_url(RULE, "data:application/pdf;base64,AAAA"), None);
    }

    /// The bound of every text is at least what published tokenizers count.
    #[test]
    fn no_published_tokenizer_counts_more() {
        let tokenizers = [tiktoken_rs::o200k_base().unwrap(), tiktoken_rs::cl100k_base().unwrap()];
        let texts = [
            "The quick brown fox jumps over the lazy dog.",
            "请点击保存按钮，然后关闭窗口。龘靐齉爩麤",
            "👩‍👩‍👧‍👦🏳️‍🌈🤷🏽‍♂️𓀀𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
            "fn main() {\n\tlet x = vec![0xFFu8; 1 << 20];\n}\n\n\n\"\\\"\\\\\"",
            "aAbBcC1!2@3#~`^%$ \u{0}\u{1}\u{7f}\u{200b}\u{fffd}\u{e000}",
            "Ünïcödé ẞ ǅ ﷽ ﬃ ꙮ 한국어 עברית العربية ไทย",
        ];
        for tokenizer in &tokenizers {
            for sample in texts {
                let long = sample.repeat(50);
                assert!(text(&long) >= tokenizer.encode_ordinary(&long).len() as u64, "{sample}");
                let value = json!({ "arguments": { sample: [sample, 1.5, null] } });
                let shown = [value.to_string(), serde_json::to_string_pretty(&value).unwrap(), ascii(&value)];
                for shown in shown {
                    assert!(structured(&value) >= tokenizer.encode_ordinary(&shown).len() as u64, "{shown}");
                }
            }
        }
    }

    /// The same JSON with escapes for all that is not ASCII, as Python writes it.
    fn ascii(value: &Value) -> String {
        let mut out = String::new();
        for char in value.to_string().chars() {
            if char.is_ascii() {
                out.push(char);
            } else {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").unwrap();
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn the_bound_of_a_value_is_no_less_than_its_text(text in "\\PC{0,40}", number: f64) {
            let value = json!({ "k": [text.clone(), number, { text: true }] });
            prop_assert!(structured(&value) >= value.to_string().len() as u64);
            prop_assert!(structured(&value) >= ascii(&value).len() as u64);
        }

        #[test]
        fn any_image_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), magic in 0_usize..5) {
            let magics: [&[u8]; 5] = [b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF\0\0\0\0WEBPVP8L", b"\xFF\xD8\xFF", b""];
            let _ = size(&BASE64.encode([magics[magic], &bytes].concat()));
        }
    }
}
