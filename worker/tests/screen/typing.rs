//! Text and keys.

use std::path::Path;

use longhaul_core::step::ActionOutcome;
use longhaul_worker::screen::Screen;
use serde_json::{Value, json};
use x11rb::protocol::xkb::{self, ConnectionExt as _};
use x11rb::protocol::xproto::ModMask;

use crate::server::{Program, Server, eventually};
use crate::window::{Seen, Window};

const SHIFT: u32 = 0xffe1;
const CONTROL: u32 = 0xffe3;

fn perform(screen: &mut Screen, action: Value) -> ActionOutcome {
    let performed = screen.perform(&[action]).unwrap();
    let [outcome] = performed.outcomes.as_slice() else { panic!("one outcome for one action") };
    outcome.clone()
}

fn types(screen: &mut Screen, window: &Window, text: &str) {
    assert_eq!(perform(screen, json!({"keyboard": {"text": text}})), ActionOutcome::Done);
    assert_eq!(window.text(), text);
}

fn refused(outcome: ActionOutcome) -> String {
    match outcome {
        ActionOutcome::Error(reason) => reason,
        ActionOutcome::Done => panic!("it should have been refused"),
    }
}

const ASCII: &str = " !\"#$%&'()*+,-./0123456789:;<=>?@ABCXYZ[\\]^_`abcxyz{|}~";
const SCRIPTS: &str =
    "Grüße Ärger Ünïcode ß ñ Ø Αλφάβητο ελληνικά Съешь ещё этих булок 漢字かな交じり文 한국어 שלום 😀👩\u{200d}🚀 €–…";

#[test]
fn ascii_is_typed_on_every_layout() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    for layout in [["us"], ["de"], ["fr"], ["ru"]] {
        server.layout(&layout);
        types(&mut screen, &window, ASCII);
    }
}

#[test]
fn every_script_is_typed_on_every_layout() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    for layout in [["us"], ["de"], ["gr"]] {
        server.layout(&layout);
        types(&mut screen, &window, SCRIPTS);
    }
}

#[test]
fn line_ends_and_tabulators_are_keys() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    assert_eq!(perform(&mut screen, json!({"keyboard": {"text": "a\r\nb\rc\n\td"}})), ActionOutcome::Done);
    assert_eq!(window.text(), "a\nb\nc\n\td");
}

#[test]
fn locked_capitals_do_not_change_a_text_and_stay_locked() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    perform(&mut screen, json!({"keyboard": {"keys": "capslock"}}));
    drop(window.seen());
    types(&mut screen, &window, "abC äÖ");
    perform(&mut screen, json!({"keyboard": {"keys": "a"}}));
    assert_eq!(window.text(), "A");
}

#[test]
fn more_new_characters_than_there_are_keys_to_spare_are_typed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let text: String = ('\u{4e00}'..='\u{4f00}').collect();
    types(&mut screen, &window, &text);
}

#[test]
fn a_long_text_is_typed_whole() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let text: String = "The quick brown fox — naïve, 100 % café; \"Quoted\".\n".chars().cycle().take(5000).collect();
    types(&mut screen, &window, &text);
}

#[test]
fn borrowed_keys_are_given_back_when_the_screen_is_closed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mapping = || {
        use x11rb::connection::Connection as _;
        use x11rb::protocol::xproto::ConnectionExt as _;
        let (client, _) = x11rb::connect(Some(&server.display())).unwrap();
        let (first, last) = (client.setup().min_keycode, client.setup().max_keycode);
        let reply = client.get_keyboard_mapping(first, last - first + 1).unwrap().reply().unwrap();
        let per_key = usize::from(reply.keysyms_per_keycode);
        // The number of columns may differ; what the keys give may not.
        reply
            .keysyms
            .chunks(per_key)
            .map(|key| key.iter().copied().filter(|k| *k != 0).collect())
            .collect::<Vec<Vec<u32>>>()
    };
    let mut screen = server.screen();
    types(&mut screen, &window, "a");
    let before = mapping();
    let text: String = ('\u{4e00}'..='\u{4e40}').collect();
    types(&mut screen, &window, &text);
    assert_ne!(mapping(), before);
    drop(screen);
    assert_eq!(mapping(), before);
}

#[test]
fn a_layout_that_is_loaded_between_two_texts_is_noticed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    types(&mut screen, &window, "zé漢");
    server.layout(&["de"]);
    types(&mut screen, &window, "zé漢ß@");
}

#[test]
fn a_chord_is_pressed_in_order_and_released_in_reverse() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    for keys in [json!(["ctrl", "shift", "s"]), json!("Ctrl+Shift+S")] {
        assert_eq!(perform(&mut screen, json!({"keyboard": {"keys": keys}})), ActionOutcome::Done);
        let seen = window.seen();
        let [Seen::Down(CONTROL, 0), Seen::Down(SHIFT, 4), Seen::Down(0x53, 5), up @ ..] = seen.as_slice() else {
            panic!("{seen:?}")
        };
        assert_eq!(up, [Seen::Up(0x53), Seen::Up(SHIFT), Seen::Up(CONTROL)]);
    }
}

#[test]
fn a_capital_in_a_shortcut_is_its_key_and_alone_is_a_capital() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    perform(&mut screen, json!({"keyboard": {"keys": ["ctrl", "S"]}}));
    assert_eq!(window.seen()[..2], [Seen::Down(CONTROL, 0), Seen::Down(0x73, 4)]);
    perform(&mut screen, json!({"keyboard": {"keys": "S"}}));
    assert_eq!(window.text(), "S");
}

#[test]
fn an_unknown_key_is_an_error_and_nothing_of_the_chord_is_pressed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let reason = refused(perform(&mut screen, json!({"keyboard": {"keys": ["ctrl", "banana"]}})));
    assert_eq!(reason, "unknown key `banana`");
    assert_eq!(window.seen(), []);
}

#[test]
fn a_control_character_is_an_error_and_nothing_of_the_text_is_typed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let reason = refused(perform(&mut screen, json!({"keyboard": {"text": "rm\u{1b}:q"}})));
    assert!(reason.contains("U+001B"), "{reason}");
    assert_eq!(window.seen(), []);
}

#[test]
fn held_keys_stay_down_until_they_are_released_or_the_screen_is_closed() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    perform(&mut screen, json!({"keyboard": {"keys_down": ["shift"]}}));
    perform(&mut screen, json!({"keyboard": {"keys": "a"}}));
    perform(&mut screen, json!({"keyboard": {"keys_up": ["shift"]}}));
    perform(&mut screen, json!({"keyboard": {"keys": "a"}}));
    let seen = window.seen();
    assert_eq!(seen[..4], [Seen::Down(SHIFT, 0), Seen::Down(0x41, 1), Seen::Up(0x41), Seen::Up(SHIFT)]);
    assert_eq!(seen[4], Seen::Down(0x61, 0));
    perform(&mut screen, json!({"keyboard": {"keys_down": ["ctrl"]}}));
    assert_eq!(window.seen(), [Seen::Down(CONTROL, 0)]);
    drop(screen);
    assert_eq!(window.seen(), [Seen::Up(CONTROL)]);
}

#[test]
fn a_text_is_typed_right_while_shift_is_held() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    perform(&mut screen, json!({"keyboard": {"keys_down": ["shift"]}}));
    types(&mut screen, &window, "aB1é");
}

#[test]
fn the_names_that_agents_use_press_the_keys_that_they_mean() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    for (name, keysym) in [
        ("Return", 0xff0d),
        ("esc", 0xff1b),
        ("BackSpace", 0xff08),
        ("page_down", 0xff56),
        ("F12", 0xffc9),
        ("plus", 0x2b),
        ("minus", 0x2d),
        ("KP_5", 0xffb5),
        ("kp_enter", 0xff8d),
        ("left", 0xff51),
        ("ü", 0xfc),
        ("altgr", 0xfe03),
        ("super", 0xffeb),
    ] {
        assert_eq!(perform(&mut screen, json!({"keyboard": {"keys": [name]}})), ActionOutcome::Done, "{name}");
        let seen = window.seen();
        assert!(seen.iter().any(|seen| matches!(seen, Seen::Down(down, _) if *down == keysym)), "{name}: {seen:?}");
    }
}

/// An xterm whose shell writes what is typed to a file.
fn xterm(server: &Server, screen: &mut Screen, file: &Path) -> Program {
    let script = format!("touch '{0}'; exec cat > '{0}'", file.display());
    let program = server.spawn("xterm", &["-u8", "-geometry", "150x40+0+0", "-e", "sh", "-c", &script]);
    eventually("the shell's start", || file.exists().then_some(()));
    let outcomes = screen.perform(&[json!({"mouse": {"left_click": [300, 300]}})]).unwrap().outcomes;
    assert_eq!(outcomes, [ActionOutcome::Done]);
    program
}

fn reads(screen: &mut Screen, file: &Path, text: &str) {
    let end = json!({"keyboard": {"keys": "ctrl+d"}});
    let outcomes = screen.perform(&[json!({"keyboard": {"text": text}}), end]).unwrap().outcomes;
    assert_eq!(outcomes, [ActionOutcome::Done, ActionOutcome::Done]);
    let length = u64::try_from(text.len()).unwrap();
    eventually("the text's arrival", || (file.metadata().unwrap().len() >= length).then_some(()));
    assert_eq!(std::fs::read_to_string(file).unwrap(), text);
}

#[test]
fn a_terminal_gets_every_script_as_it_was_written() {
    for layout in ["us", "de", "fr"] {
        let server = Server::start();
        server.layout(&[layout]);
        let mut screen = server.screen();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("typed");
        let _xterm = xterm(&server, &mut screen, &file);
        reads(&mut screen, &file, &format!("{ASCII}\n{SCRIPTS}\n"));
    }
}

#[test]
fn a_terminal_gets_a_long_text_with_more_characters_than_keys() {
    let server = Server::start();
    let mut screen = server.screen();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("typed");
    let _xterm = xterm(&server, &mut screen, &file);
    let line: String = ('\u{4e00}'..='\u{4fa0}').collect();
    let text: String = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n".repeat(60);
    reads(&mut screen, &file, &format!("{text}{line}\n"));
}

#[test]
fn the_second_of_two_layouts_is_typed_on_when_it_is_on() {
    let server = Server::start();
    server.layout(&["us,de"]);
    let mut screen = server.screen();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("typed");
    let _xterm = xterm(&server, &mut screen, &file);
    let (client, _) = x11rb::connect(Some(&server.display())).unwrap();
    client.xkb_use_extension(1, 0).unwrap().reply().unwrap();
    let none = ModMask::from(0_u16);
    client.xkb_latch_lock_state(0x100, none, none, true, xkb::Group::M2, none, false, 0).unwrap().check().unwrap();
    reads(&mut screen, &file, &format!("yz ß {ASCII}\n"));
}
