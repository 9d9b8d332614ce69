//! The accounts that an env declares: made inside, with their groups and variables.

use std::collections::BTreeMap;

use longhaul_core::helper::CommandSpec;
use longhaul_core::plan::AccountPlan;

use crate::sandbox::{Sandbox, SandboxError};

/// What gives `su -` and `bash -l` the variables of their account, one a line in a file of its name; what
/// the helper starts has them from the helper.
pub(crate) const PROFILE: &str = r#"if [ -r "/etc/longhaul/environment/$(id -un)" ]; then
  while IFS= read -r line; do
    export "$line"
  done <"/etc/longhaul/environment/$(id -un)"
  unset line
fi
"#;

/// Makes those of the env's accounts that the image lacks, and gives all of them what the env
/// says of them. Once for each stack: in its lowest layer, or in a sandbox that has none.
pub async fn make(sandbox: &Sandbox, accounts: &[AccountPlan]) -> Result<(), SandboxError> {
    for account in accounts {
        let ended = sandbox
            .run(CommandSpec {
                argv: command(account),
                user: "root".to_owned(),
                // Not as arguments, which every process may read.
                env: BTreeMap::from([
                    ("LONGHAUL_VARIABLES".to_owned(), variables(account)),
                    ("LONGHAUL_PASSWORD".to_owned(), account.password.clone().unwrap_or_default()),
                    ("LONGHAUL_PROFILE".to_owned(), PROFILE.to_owned()),
                ]),
                limit_millis: 60_000,
                output_limit: 2000,
                ..CommandSpec::default()
            })
            .await?;
        if ended.code != 0 {
            // As with upstream, a hook that needs the account says so itself.
            tracing::warn!(account = account.name, code = ended.code, output = ended.output, "an account was not made");
        }
    }
    // Those that are new were told nothing yet, and the variables of the others were written anew.
    if accounts.is_empty() { Ok(()) } else { sandbox.equip().await }
}

/// The command that makes an account, or adds to one that is there. Names go in as
/// arguments and never into the script's text.
fn command(account: &AccountPlan) -> Vec<String> {
    const SCRIPT: &str = r#"
name=$1 uid=$2 shell=$3 sudo=$4
shift 4
id -u -- "$name" >/dev/null 2>&1 || useradd --create-home --shell "$shell" ${uid:+--uid "$uid"} -- "$name" || exit 1
for group; do
  getent group -- "$group" >/dev/null || groupadd -- "$group"
  usermod --append --groups "$group" -- "$name"
done
if [ "$sudo" = yes ]; then
  printf '%s ALL=(ALL) NOPASSWD:ALL\n' "$name" >"/etc/sudoers.d/longhaul-$name"
fi
if [ -n "$LONGHAUL_PASSWORD" ]; then
  case $LONGHAUL_PASSWORD in
    *'
'*) echo "the password of $name has several lines" >&2; exit 1 ;;
  esac
  printf '%s:%s\n' "$name" "$LONGHAUL_PASSWORD" | chpasswd || exit 1
fi
if [ -n "$LONGHAUL_VARIABLES" ]; then
  folder=/etc/longhaul/environment
  install -d -m 0755 "$folder" || exit 1
  printf '%s\n' "$LONGHAUL_VARIABLES" >"$folder/$name" || exit 1
  chgrp -- "$(id -g -- "$name")" "$folder/$name" && chmod 0640 -- "$folder/$name" || exit 1
  printf '%s' "$LONGHAUL_PROFILE" >/etc/profile.d/longhaul-accounts.sh
fi
"#;
    let uid = account.uid.map(|uid| uid.to_string()).unwrap_or_default();
    let sudo = if account.sudo { "yes" } else { "no" };
    let mut argv: Vec<String> =
        ["/bin/bash", "-c", SCRIPT, "accounts", &account.name, &uid, &account.shell, sudo].map(str::to_owned).into();
    argv.extend(account.groups.iter().cloned());
    argv
}

/// The variables of an account's environment, one a line. A name that no shell knows or a value
/// of several lines cannot be one, and is left out. Pure.
fn variables(account: &AccountPlan) -> String {
    let is_name = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
    };
    let lines = account.env_vars.iter().filter_map(|(name, value)| {
        let can_be = is_name(name) && !value.contains(['\n', '\0']);
        if !can_be {
            tracing::warn!(account = account.name, variable = name, "a variable of an account was left out");
        }
        can_be.then(|| format!("{name}={value}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accounts_name_is_an_argument() {
        let account = AccountPlan {
            name: "x; rm -rf /".into(),
            uid: Some(1234),
            groups: vec!["audio".into()],
            shell: "/bin/bash".into(),
            sudo: true,
            password: None,
            env_vars: BTreeMap::new(),
        };
        let argv = command(&account);
        assert!(!argv[2].contains("rm -rf"));
        assert_eq!(argv[4..], ["x; rm -rf /", "1234", "/bin/bash", "yes", "audio"]);
    }

    #[test]
    fn only_what_a_shell_can_hold_is_a_variable() {
        let variables_of = |pairs: &[(&str, &str)]| {
            let env_vars = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let account = AccountPlan {
                name: "a".into(),
                uid: None,
                groups: vec![],
                shell: "/bin/sh".into(),
                sudo: false,
                password: None,
                env_vars,
            };
            variables(&account)
        };
        assert_eq!(variables_of(&[("B", "two 'words' $x"), ("A_1", "")]), "A_1=\nB=two 'words' $x");
        assert_eq!(variables_of(&[("1A", "x"), ("", "x"), ("A B", "x"), ("A;rm", "x"), ("L", "one\nPATH=/evil")]), "");
    }
}
