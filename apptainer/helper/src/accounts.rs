//! Accounts and groups, read from /etc/passwd and /etc/group directly: a static program
//! cannot load the libraries behind getpwnam.

use std::fs;
use std::io;
use std::path::Path;

/// One account with all its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Its own group and those that list it.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
    pub(crate) shell: String,
}

/// The accounts of a sandbox, as the files say at this moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads the files of `root` (`/` inside a sandbox).
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let text = |path| fs::read(root.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Self { passwd: text("etc/passwd")?, group: text("etc/group").unwrap_or_default() })
    }

    /// The account called `name`, or with the number `#UID`.
    pub(crate) fn find(&self, name: &str) -> Option<Account> {
        let by_number = name.strip_prefix('#').and_then(|digits| digits.parse::<u32>().ok());
        self.lines().find(|account| match by_number {
            Some(uid) => account.uid == uid,
            None => account.name == name,
        })
    }

    /// The account with this number; one without a name is made up, as the kernel allows it.
    pub(crate) fn by_uid(&self, uid: u32) -> Option<Account> {
        self.find(&format!("#{uid}"))
    }

    /// Whether the account is in a group of this name.
    pub(crate) fn is_member(&self, account: &Account, group: &str) -> bool {
        self.groups().any(|(name, gid, _)| name == group && account.groups.contains(&gid))
    }

    fn lines(&self) -> impl Iterator<Item = Account> + '_ {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1).filter(|home| !home.is_empty()).unwrap_or("/");
            let shell = fields.next().filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh");
            let mut groups = vec![gid];
            groups.extend(
                self.groups()
                    .filter(|(_, id, members)| *id != gid && members.split(',').any(|member| member == name))
                    .map(|(_, id, _)| id),
            );
            Some(Account { name: name.into(), uid, gid, groups, home: home.into(), shell: shell.into() })
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> + '_ {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some((name, gid, fields.next().unwrap_or_default()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/bash\n\nbroken\nga:x:1000:1000:ga,,,:/home/ga:/bin/bash\nodd:x:7:8::\n"
                .into(),
            group: "root:x:0:\nsudo:x:27:ga,other\nga:x:1000:\naudio:x:29:ga\nnogroup\n".into(),
        }
    }

    #[test]
    fn an_account_is_found_with_its_groups() {
        let ga = accounts().find("ga").expect("is there");
        assert_eq!((ga.uid, ga.gid, ga.home.as_str(), ga.shell.as_str()), (1000, 1000, "/home/ga", "/bin/bash"));
        assert_eq!(ga.groups, [1000, 27, 29]);
        assert!(accounts().is_member(&ga, "sudo"));
        assert!(!accounts().is_member(&ga, "root"));
    }

    #[test]
    fn a_number_or_a_bad_line_is_no_trouble() {
        assert_eq!(accounts().by_uid(0).map(|account| account.name), Some("root".into()));
        assert_eq!(accounts().find("broken"), None);
        assert_eq!(accounts().find("#99"), None);
        let odd = accounts().find("odd").expect("fields that are left out have defaults");
        assert_eq!((odd.home.as_str(), odd.shell.as_str()), ("/", "/bin/sh"));
    }
}
