//! env.json and env.yaml.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::Format;
use super::diagnostic::{Code, Diagnostic, Refused};
use super::fields::Fields;
use super::json::Document;
use super::merge::merge_env;
use super::preset::preset;
use crate::plan::{AccountPlan, Resources};

/// The operating system inside an env.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Os {
    /// Linux.
    Linux,
    /// Windows.
    Windows,
    /// Android.
    Android,
    /// Something else, as the spec names it.
    Other(String),
}

/// The size of a screen in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Screen {
    /// Pixels across.
    pub width: u16,
    /// Pixels down.
    pub height: u16,
}

/// The screen of an env that does not say.
const DEFAULT_SCREEN: Screen = Screen { width: 1920, height: 1080 };

/// A mount as the spec writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountSpec {
    /// What is mounted, in the benchmark's own words.
    pub source: String,
    /// Where it is seen inside.
    pub target: String,
    /// Whether it may be written to.
    pub writable: bool,
}

/// The hooks of an env, as strings for `bash -lc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EnvHooks {
    /// Installs.
    pub pre_start: Option<String>,
    /// Configures.
    pub post_start: Option<String>,
    /// Runs before each task.
    pub reset: Option<String>,
}

impl EnvHooks {
    /// Those that there are, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("pre_start", &self.pre_start), ("post_start", &self.post_start), ("reset", &self.reset)]
            .into_iter()
            .filter_map(|(name, hook)| Some((name, hook.as_deref()?)))
    }
}

/// An env, merged over its base.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnvSpec {
    /// Its id; not unique in practice, so envs are named by their folders.
    pub id: String,
    /// The preset it is laid over.
    pub base: Option<String>,
    /// The operating system inside.
    pub os: Os,
    /// The runner it was written for, if it says.
    pub runner: Option<String>,
    /// What it asks of a node.
    pub resources: Resources,
    /// Whether it may reach the network.
    pub net: bool,
    /// Its screen.
    pub screen: Screen,
    /// Its mounts.
    pub mounts: Vec<MountSpec>,
    /// Its accounts.
    pub accounts: Vec<AccountPlan>,
    /// Its hooks.
    pub hooks: EnvHooks,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its hook that opens its programs again over files that were saved: in our own section
    /// `longhaul`, which others ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
}

/// The keys that an env may have at its top; any other is ignored with a note.
const KEYS: &[&str] = &[
    "id",
    "version",
    "description",
    "category",
    "authors",
    "licence",
    "license",
    "upstream_url",
    "tags",
    "base",
    "image",
    "dockerfile",
    "entrypoint",
    "apptainer",
    "resources",
    "mounts",
    "apks",
    "user_accounts",
    "observation",
    "action",
    "synchronous",
    "step_cycle_ms",
    "reset_script",
    "deterministic",
    "supports_save_restore",
    "save_paths",
    "default_cache_level",
    "default_use_savevm",
    "security",
    "recording",
    "vnc",
    "ssh",
    "adb",
    "avd",
    "diagnostics",
    "os_type",
    "runner",
    "runner_options",
    "display_backend",
    "input_backend",
    "audio_backend",
    "skip_display_audio_bootstrap",
    "hooks",
    "multi_agent",
    "longhaul",
];

/// The least and the most of a screen's sides that the display can give.
const SCREEN_SIDES: std::ops::RangeInclusive<u64> = 64..=16_384;

/// Reads an env from the bytes of its file, laid over the preset of its `base`.
///
/// `folder` is the name of the env's folder, used where it has no id.
///
/// # Errors
///
/// The file is not readable as JSON or YAML, not an object, names a base that is not
/// known, or has nothing to observe or to act on.
pub fn parse_env(bytes: &[u8], format: Format, folder: &str, out: &mut Vec<Diagnostic>) -> Result<EnvSpec, Refused> {
    let syntax = if format == Format::Json { Code::JsonSyntax } else { Code::YamlSyntax };
    let document = Document::parse(bytes, format, syntax, out)?;
    let Some(own) = document.value().as_object() else {
        return Err(Diagnostic::new(Code::NotAnObject, "an env is an object, not a list or a single value").into());
    };
    let own_fields = Fields::new(Some(own), Vec::new(), &document);
    for key in own_fields.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        let message = format!("`{}` means nothing in an env", key.chars().take(80).collect::<String>());
        out.push(own_fields.diagnostic(Code::UnknownKey, key, message));
    }
    let base = own_fields.filled("base", out);
    let merged = match &base {
        None => own.clone(),
        Some(base) => match preset(base) {
            Some(preset) => merge_env(preset, own),
            None => {
                let message = format!("the base `{base}` is not known");
                return Err(own_fields.diagnostic(Code::UnknownBase, "base", message).into());
            }
        },
    };
    let fields = Fields::new(Some(&merged), Vec::new(), &document);
    require_items(&fields, "observation", Code::NoObservation)?;
    require_items(&fields, "action", Code::NoAction)?;

    let id = fields.filled("id", out).unwrap_or_else(|| {
        out.push(Diagnostic::new(Code::EnvIdMissing, "the env has no id"));
        folder.to_owned()
    });
    let os = read_os(&fields, base.as_deref(), out);
    let resources = fields.object("resources", out);
    let hooks = fields.object("hooks", out);
    Ok(EnvSpec {
        id,
        os,
        runner: fields.filled("runner", out),
        resources: read_resources(&resources, out),
        net: resources.flag("net", out).unwrap_or(true),
        screen: read_screen(&fields, out),
        mounts: read_mounts(&fields, out),
        accounts: read_accounts(&fields, out),
        hooks: EnvHooks {
            pre_start: hooks.filled("pre_start", out),
            post_start: hooks.filled("post_start", out),
            reset: hooks.filled("reset", out).or_else(|| fields.filled("reset_script", out)),
        },
        tags: fields.texts("tags", out),
        restart: fields.object("longhaul", out).filled("restart", out),
        base,
    })
}

fn require_items(fields: &Fields<'_>, key: &str, code: Code) -> Result<(), Refused> {
    match fields.get(key) {
        Some(Value::Array(items)) if !items.is_empty() => Ok(()),
        _ => Err(fields.diagnostic(code, key, format!("the env has no `{key}`")).into()),
    }
}

fn read_os(fields: &Fields<'_>, base: Option<&str>, out: &mut Vec<Diagnostic>) -> Os {
    let named = fields.filled("os_type", out);
    match named.as_deref().or(base) {
        None => Os::Linux,
        Some(name) if name.starts_with("windows") => Os::Windows,
        Some(name) if name.starts_with("android") => Os::Android,
        Some(_) if named.is_none() => Os::Linux,
        Some("linux") => Os::Linux,
        Some(other) => Os::Other(other.to_owned()),
    }
}

fn read_resources(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> Resources {
    let thousandths = |number: f64| (number * 1000.0).round().clamp(1.0, f64::from(u32::MAX)) as u32;
    let mebibytes = |number: f64| (number * 1024.0).round().clamp(1.0, f64::from(u32::MAX)) as u32;
    Resources {
        cpu_millis: fields.number("cpu", out).map_or(2000, thousandths),
        memory_mib: fields.number("mem_gb", out).map_or(4096, mebibytes),
        gpus: fields.whole("gpu", 0, out).unwrap_or(0),
    }
}

fn read_screen(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> Screen {
    let observations = fields.objects("observation", out);
    let is_screen = |item: &&Fields<'_>| item.get("type").and_then(Value::as_str) == Some("rgb_screen");
    let Some(screen) = observations.iter().find(is_screen) else { return DEFAULT_SCREEN };
    let Some(resolution) = screen.get("resolution") else { return DEFAULT_SCREEN };
    let side = |value: &Value| value.as_u64().filter(|side| SCREEN_SIDES.contains(side));
    let sides = resolution.as_array().map(|sides| sides.iter().map(side).collect::<Vec<_>>());
    if let Some([Some(width), Some(height)]) = sides.as_deref()
        && let (Ok(width), Ok(height)) = (u16::try_from(*width), u16::try_from(*height))
    {
        return Screen { width, height };
    }
    let message = format!("`resolution` takes two whole numbers, not {resolution}");
    out.push(screen.diagnostic(Code::WrongType, "resolution", message));
    DEFAULT_SCREEN
}

fn read_mounts(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> Vec<MountSpec> {
    let mut mounts = Vec::new();
    for mount in fields.objects("mounts", out) {
        let source = mount.filled("source", out);
        let target = mount.filled("target", out);
        let writable = mount.text("mode", out).is_some_and(|mode| mode.eq_ignore_ascii_case("rw"));
        match (source, target) {
            (Some(source), Some(target)) => mounts.push(MountSpec { source, target, writable }),
            _ => {
                let message = "a mount has no `source` or no `target`".to_owned();
                out.push(mount.diagnostic(Code::MountIncomplete, "source", message));
            }
        }
    }
    mounts
}

fn read_accounts(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> Vec<AccountPlan> {
    let mut accounts = Vec::new();
    for account in fields.objects("user_accounts", out) {
        let Some(name) = account.filled("name", out) else {
            let message = "an account has no `name`".to_owned();
            out.push(account.diagnostic(Code::WrongType, "name", message));
            continue;
        };
        let permissions = account.object("permissions", out);
        let sudo = permissions.flag("sudo", out).unwrap_or(false);
        let without_password = permissions.flag("sudo_nopasswd", out).unwrap_or(false);
        accounts.push(AccountPlan {
            name,
            uid: account.whole("uid", 0, out),
            groups: permissions.texts("groups", out),
            shell: permissions.filled("shell", out).unwrap_or_else(|| "/bin/bash".to_owned()),
            sudo: sudo || without_password,
            password: account.filled("password", out),
            env_vars: read_env_vars(&permissions, out),
        });
    }
    accounts
}

fn read_env_vars(permissions: &Fields<'_>, out: &mut Vec<Diagnostic>) -> BTreeMap<String, String> {
    let variables = permissions.object("env_vars", out);
    let mut read = BTreeMap::new();
    for key in variables.keys() {
        match variables.get(key) {
            Some(Value::String(text)) => drop(read.insert(key.clone(), text.clone())),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => drop(read.insert(key.clone(), value.to_string())),
            _ => drop(variables.text(key, out)),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Place;

    fn env(text: &str) -> (Result<EnvSpec, Refused>, Vec<Diagnostic>) {
        let mut out = Vec::new();
        let format = if text.trim_start().starts_with('{') { Format::Json } else { Format::Yaml };
        (parse_env(text.as_bytes(), format, "folder_env", &mut out), out)
    }

    const BASE: &str = r#""base": "ubuntu-gnome-systemd_highres""#;

    #[test]
    fn an_env_is_laid_over_its_base() {
        let (spec, out) = env(&format!(
            r#"{{"id": "a@1", {BASE}, "resources": {{"cpu": 0.5, "mem_gb": 8}},
              "observation": [{{"type": "rgb_screen", "resolution": [1280, 720]}}],
              "user_accounts": [{{"name": "ga", "note": "x", "password": "p w", "permissions": {{"sudo": true, "env_vars": {{"N": 1}}}}}}]}}"#
        ));
        let spec = spec.unwrap();
        assert_eq!(out, []);
        assert_eq!(spec.resources, Resources { cpu_millis: 500, memory_mib: 8192, gpus: 0 });
        assert_eq!((spec.screen.width, spec.screen.height, spec.net), (1280, 720, true));
        assert_eq!(spec.accounts[0].env_vars["N"], "1");
        assert!(spec.accounts[0].sudo);
        assert_eq!(spec.accounts[0].password.as_deref(), Some("p w"));
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        let cases = [
            (r#"{"id": "a", "base": "beos"}"#, Code::UnknownBase),
            (r#"{"id": "a", "action": [{"type": "mouse"}]}"#, Code::NoObservation),
            (r#"{"id": "a", "observation": [{"type": "rgb_screen"}], "action": []}"#, Code::NoAction),
            ("[1, 2]", Code::NotAnObject),
            ("{\"id\": ", Code::JsonSyntax),
            ("id: [1, 2", Code::YamlSyntax),
        ];
        for (text, code) in cases {
            let format = if text.starts_with("id") { Format::Yaml } else { Format::Json };
            let refused = parse_env(text.as_bytes(), format, "x", &mut Vec::new()).unwrap_err();
            assert_eq!(refused.0.code, code, "{text}: {refused}");
        }
    }

    #[test]
    fn odd_fields_are_reported_where_they_stand_and_ignored() {
        let (spec, out) = env(&format!(
            "{{{BASE},\n \"cache_level\": \"pre_start\",\n \"mounts\": [{{\"source\": \"a\"}}, 7],\n \
             \"resources\": {{\"cpu\": \"four\", \"gpu\": -1}},\n \"category\": \"office\", \"tags\": \"one\"}}"
        ));
        let spec = spec.unwrap();
        let seen: Vec<_> = out.iter().map(|found| (found.code, found.place)).collect();
        let at = |line, column| Some(Place { line, column });
        assert_eq!(
            seen,
            [
                (Code::UnknownKey, at(2, 17)),
                (Code::EnvIdMissing, None),
                (Code::WrongType, at(4, 23)),
                (Code::WrongType, at(4, 38)),
                (Code::WrongType, at(3, 30)),
                (Code::MountIncomplete, at(3, 24)),
            ]
        );
        assert_eq!((spec.id.as_str(), spec.resources.cpu_millis), ("folder_env", 2000));
        assert_eq!((spec.mounts.len(), spec.tags.len()), (0, 1));
    }

    #[test]
    fn yaml_is_read_like_json() {
        let (spec, out) = env("id: a@1\nobservation:\n  - type: rgb_screen\n    resolution: [1280, 720]\n\
                               action:\n  - type: mouse\nresources:\n  cpu: 4\n  net: false\n");
        let spec = spec.unwrap();
        assert_eq!(out, []);
        assert_eq!((spec.screen.width, spec.net, spec.resources.cpu_millis), (1280, false, 4000));
    }

    #[test]
    fn a_yaml_error_has_a_place() {
        let (spec, _) = env("id: a\nobservation: [\n  - : :\n]]\n");
        let refused = spec.unwrap_err();
        assert_eq!(refused.0.code, Code::YamlSyntax);
        assert!(refused.0.place.is_some(), "{refused}");
    }

    #[test]
    fn yaml_aliases_cannot_blow_up() {
        let level = |level: usize| {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            format!("a{level}: &a{level} [{aliases}]\n")
        };
        let bomb = format!("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n{}", (1..12).map(level).collect::<String>());
        assert!(env(&bomb).0.is_err());
    }

    #[test]
    fn the_system_inside_is_known_by_name_or_base() {
        let os = |text: &str| env(text).0.unwrap().os;
        assert_eq!(os(r#"{"id": "a", "base": "windows-11"}"#), Os::Windows);
        assert_eq!(os(r#"{"id": "a", "base": "android-avd-34"}"#), Os::Android);
        assert_eq!(os(&format!(r#"{{"id": "a", {BASE}}}"#)), Os::Linux);
        assert_eq!(os(&format!(r#"{{"id": "a", {BASE}, "os_type": "haiku"}}"#)), Os::Other("haiku".to_owned()));
    }
}
