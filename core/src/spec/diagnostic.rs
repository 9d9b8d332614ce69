//! What can be said about a file: one code for each kind of oddity.

use std::fmt;

use serde::{Serialize, Serializer};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is lost.
    Note,
    /// It runs, but not as its author meant, or its verdict is worth less.
    Warning,
    /// What the file describes cannot be run.
    Error,
}

impl Severity {
    /// The word shown to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A place in a text: both numbers from 1, columns counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Something to say about one file; the reader knows which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What kind of thing it is.
    pub code: Code,
    /// Where in the file, if it is at a place.
    pub place: Option<Place>,
    /// What was found.
    pub message: String,
    /// What to do, where it says more than the code's own hint.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// A diagnostic without a place.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, place: None, message: message.into(), hint: None }
    }

    /// The same, at a place.
    #[must_use]
    pub fn at(mut self, place: impl Into<Option<Place>>) -> Self {
        self.place = place.into();
        self
    }

    /// The same, with a hint of its own.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn hint_text(&self) -> &str {
        self.hint.as_deref().unwrap_or_else(|| self.code.hint())
    }
}

/// A file that cannot be used; it is refused alone, and all others stay usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Shown(.0))]
pub struct Refused(pub Box<Diagnostic>);

impl From<Diagnostic> for Refused {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(Box::new(diagnostic))
    }
}

struct Shown<'a>(&'a Diagnostic);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.0.place {
            write!(f, "line {}, column {}: ", place.line, place.column)?;
        }
        f.write_str(&self.0.message)
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $severity:ident $hint:literal;)*) => {
        /// The kinds of findings. Their names are stable: scripts may rely on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name in output.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// How much such a finding matters.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint,)* }
            }
        }
    };
}

codes! {
    // Files that cannot be read.
    /// An env.json or task.json is not JSON.
    JsonSyntax "json-syntax" Error "correct the file; the other envs and tasks are not affected";
    /// An env.yaml or task.yaml is not YAML.
    YamlSyntax "yaml-syntax" Error "correct the file; the other envs and tasks are not affected";
    /// A spec is not UTF-8.
    NotUtf8 "not-utf8" Error "save the file as UTF-8";
    /// A file or folder could not be read.
    Unreadable "unreadable" Error "check the permissions of the file and of the folders above it";
    /// A spec starts with a byte order mark.
    ByteOrderMark "byte-order-mark" Warning "save the file without it: other tools refuse it";
    /// A key stands twice in one object.
    DuplicateKey "duplicate-key" Warning "the last one counts: remove the others";
    /// A spec's top is not an object.
    NotAnObject "not-an-object" Error "a spec is one JSON object (or YAML mapping)";
    /// A field has a value of another type.
    WrongType "wrong-type" Warning "the value is ignored, as if it were not there";

    // Envs.
    /// An env names a base that is not known.
    UnknownBase "unknown-base" Error "use one of Gym-Anything's bases, or write out what it would give";
    /// A folder under environments/ has no env.json and no env.yaml.
    EnvSpecMissing "env-spec-missing" Note "it is passed over; remove it, or add an env.json";
    /// An env has no id.
    EnvIdMissing "env-id-missing" Warning "the folder's name is used; add an `id`";
    /// An env has nothing to observe.
    NoObservation "no-observation" Error "add an `observation` of type `rgb_screen`, or a base that has one";
    /// An env has no action.
    NoAction "no-action" Error "add an `action` of type `mouse` or `keyboard`, or a base that has one";
    /// An env has a key that means nothing.
    UnknownKey "unknown-key" Note "it is ignored; check its spelling";
    /// A mount lacks its source or target.
    MountIncomplete "mount-incomplete" Warning "the mount is left out; give it `source` and `target`";
    /// What a mount shows is not there.
    MountSourceMissing "mount-source-missing" Note "an empty folder is mounted (version control cannot store one)";
    /// A mount leads out of the clone.
    MountOutside "mount-outside" Error "mounts reach only what is inside the benchmark's clone";
    /// A mount shows the files of another env.
    MountOfAnotherEnv "mount-of-another-env" Warning "edits of that env change this one too";
    /// Two envs have one id.
    DuplicateEnvId "duplicate-env-id" Warning "envs are told apart by their folders here; give each an id of its own";
    /// An env has no tasks.
    EnvWithoutTasks "env-without-tasks" Note "there is nothing to run in it";
    /// The tasks of an env are a link to those of another.
    LinkedTasks "linked-tasks" Note "the tasks are counted once, and can be run in both envs";
    /// An env has no scripts in this copy of the benchmark.
    NoScripts "no-scripts" Note "hooks and needs cannot be checked here; use a whole clone";
    /// An env runs in a plain container.
    NeedsContainer "needs-container" Note "nothing more is needed";
    /// An env starts services.
    NeedsServices "needs-services" Note "they are started by the stand-in for systemctl and service";
    /// An env needs systemd itself.
    NeedsSystemd "needs-systemd" Warning "a container cannot give it: the env is refused when it is run";
    /// An env needs docker.
    NeedsDocker "needs-docker" Warning "a container cannot give it: the env is refused when it is run";
    /// An env needs snap.
    NeedsSnap "needs-snap" Warning "a container cannot give it: the env is refused when it is run";
    /// An env needs the host's kernel: modules, loop devices, virtualisation.
    NeedsKernel "needs-kernel" Warning "a container cannot give it: the env is refused when it is run";
    /// An env is Windows.
    NeedsWindows "needs-windows" Warning "a container cannot give it: the env is refused when it is run";
    /// An env is Android.
    NeedsAndroid "needs-android" Warning "a container cannot give it: the env is refused when it is run";
    /// An env needs a graphics processor.
    NeedsGpu "needs-gpu" Warning "it is run by workers that have as many, and refused where none has";

    // Tasks.
    /// A task folder has no task.json.
    TaskSpecMissing "task-spec-missing" Error "add a task.json, or remove the folder";
    /// A file stands among the task folders.
    StrayFile "stray-file" Note "it is passed over";
    /// A task.json follows another schema.
    NotATask "not-a-task" Error "rewrite it in Gym-Anything's schema: it needs `init`, `hooks` and `success`";
    /// A task has no id.
    TaskIdMissing "task-id-missing" Warning "the folder's name is used; add an `id`";
    /// A task's id is not its folder's name.
    TaskIdMismatch "task-id-mismatch" Warning "tasks are named by their folders; correct the `id`";
    /// Two tasks of one env have one id.
    DuplicateTaskId "duplicate-task-id" Warning "tasks are told apart by their folders here; correct one `id`";
    /// Several envs have a task of this name.
    TaskNameShared "task-name-shared" Note "results are kept apart as env/task";
    /// A task does not say which env it is for.
    TaskEnvMissing "task-env-missing" Note "the env whose folder it is in is used";
    /// A task names another env than the one it is in.
    TaskEnvMismatch "task-env-mismatch" Note "the env whose folder it is in is used";
    /// A task asks for nothing.
    DescriptionMissing "description-missing" Warning "the agent gets the task's name only; add a `description`";
    /// A task has no limits.
    InitMissing "init-missing" Warning "default limits are used; add `init`";
    /// A task prepares nothing.
    HooksMissing "hooks-missing" Warning "the task starts on the bare env; add `hooks`";
    /// A task has no success.
    SuccessMissing "success-missing" Warning "every episode is settled as unverified; add `success`";
    /// A task does not say how it is scored.
    SuccessModeMissing "success-mode-missing" Note "`program` is used";
    /// A task is scored in a way that is not known.
    SuccessModeUnknown "success-mode-unknown" Warning "every episode is settled as unverified";
    /// A task names a reward that is not known.
    RewardTypeUnknown "reward-type-unknown" Note "rewards are not used: verdicts are";
    /// A task asks for key presses through the env's own channel.
    InitInputIgnored "init-input-ignored" Warning "`init_pyautogui` is for Windows envs and is not carried out";
    /// A value is so small that it is hardly meant.
    OddLimit "odd-limit" Note "check the value; it is used as it is";

    // Rounds of a task.
    /// A part of a task's rounds has another shape.
    RoundsShape "rounds-shape" Error "correct it as docs/rounds.md says; the other tasks are not affected";
    /// A key of a task's rounds means nothing.
    RoundsUnknownKey "rounds-unknown-key" Error "check its spelling: what is not understood would not be checked";
    /// A family, a kind of round or an aspect is not known.
    RoundsUnknownWord "rounds-unknown-word" Error "use one of the words that the message names";
    /// An assertion cannot be found out.
    RoundsAssertion "rounds-assertion" Error "give it one operator, with a value that it takes, and `at`";
    /// Two assertions of one round have one id.
    RoundsDuplicateId "rounds-duplicate-id" Error "rename one: results are kept by id";
    /// An assertion looks at a reading that nothing makes.
    RoundsNoRead "rounds-no-read" Error "give that round a `read` hook";
    /// A hook of a round is not there.
    RoundsFileMissing "rounds-file-missing" Error "add the file to the task's folder, or correct its path";
    /// The hook files of a task's rounds are too large to be brought in for each hook.
    RoundsFilesLarge "rounds-files-large" Error "move data to the env's folders, which are mounted and not copied";
    /// Nothing is asserted of a round.
    RoundsUnchecked "rounds-unchecked" Warning "it holds whatever the agent does in it; add `assertions`";
    /// The last rounds may never be reached.
    RoundsBudget "rounds-budget" Warning "raise `init.max_steps`: rounds that are never reached count as failed";

    // Hooks and scripts.
    /// A script that a hook names is not there.
    HookFileMissing "hook-file-missing" Warning "the hook fails when it runs: add the file, or correct the hook";
    /// A shell script does not parse.
    ScriptSyntax "script-syntax" Warning "the lines before the error run, then it exits with a failure";
    /// A script holds text that an authoring tool leaked.
    LeakedText "leaked-text" Warning "remove the block; it is data, and breaks parsers";

    // Verifiers.
    /// The verifier that a task names is not there.
    VerifierMissing "verifier-missing" Warning "every episode is settled as unverified";
    /// The verifier has no such function.
    VerifierFunctionMissing "verifier-function-missing" Warning "every episode is settled as unverified";
    /// The verifier takes other arguments.
    VerifierSignature "verifier-signature" Warning "it is called with (traj, env_info, task_info), and fails";
    /// The verifier uses a callable that no Gym-Anything gives.
    VerifierUnknownHelper "verifier-unknown-helper" Warning "it fails or gives a worse answer when it is used";
    /// The verifier passes everything.
    StubVerifier "stub-verifier" Warning "every episode is settled as unverified, never as passed";
    /// The verifier fails everything.
    StubVerifierFails "stub-verifier-fails" Warning "every episode is settled as unverified, never as failed";
    /// A verifier does not parse.
    VerifierSyntax "verifier-syntax" Warning "every episode is settled as unverified";

    // Checklists and audits.
    /// A checklist is not JSON, or not readable.
    ChecklistSyntax "checklist-syntax" Warning "a judge cannot use it";
    /// A checklist follows another schema, or has no items.
    ChecklistSchema "checklist-schema" Warning "a judge cannot use it: it needs `task_completion` with items";
    /// An item's name is under another key, or missing.
    ChecklistItemId "checklist-item-id" Note "rename the key to `id`";
    /// Two items have one id.
    ChecklistDuplicateId "checklist-duplicate-id" Warning "a judge's answers cannot be told apart; rename one";
    /// The points do not add up to 100.
    ChecklistPoints "checklist-points" Note "scores are scaled to the sum";
    /// A task has no checklist.
    ChecklistMissing "checklist-missing" Note "a judge cannot score it";
    /// A checklist has no privileged information.
    ChecklistNoPrivileged "checklist-no-privileged-info" Note "the judge sees the task's description alone";
    /// A validated_pi.json is not JSON, or of another shape.
    AuditSyntax "audit-syntax" Note "the audit of privileged information is not shown";
    /// The audit contradicts the privileged information.
    AuditContradicted "audit-contradicted" Note "the checklist rests on something that is not so";

    // Splits.
    /// A split file is not JSON, or of another shape.
    SplitSyntax "split-syntax" Error "none of its tasks are in a split";
    /// A split file names an env that is not there.
    SplitEnvMissing "split-env-missing" Warning "its tasks are passed over";
    /// A split names something that is no task folder.
    SplitTaskMissing "split-task-missing" Warning "the entry is passed over";
    /// A split names a task that is refused.
    SplitTaskRefused "split-task-refused" Warning "the split cannot be run whole until the task is corrected";
    /// A split names a task twice.
    SplitRepeats "split-repeats" Note "it is counted once";
    /// Several split files speak of one env.
    SplitFilesForOneEnv "split-files-for-one-env" Warning "their lists are joined; Gym-Anything keeps the last file alone";
    /// A task is to be trained on and tested.
    SplitLeak "split-leak" Warning "a result on it says little: take it out of one";
    /// Tasks are in no split.
    InNoSplit "in-no-split" Note "they are found by name only";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
