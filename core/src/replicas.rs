//! Addresses of endpoints: what is one, and how a file of them reads. Pure.
//!
//! Servers of a model that run as jobs of a cluster come and go. Each writes its address into a file,
//! a line each, which is read again while runs live: so addresses may change, and nothing else of an
//! endpoint.

/// The most addresses of one file: a cluster has fewer nodes that serve one model.
const MOST: usize = 4096;

/// Why something is no address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is no address at all.
    #[error("`{url}` is no address, such as https://api.anthropic.com")]
    None {
        /// What it is.
        url: String,
    },
    /// It holds a user, a password or a key: an address is stored and shown.
    #[error("an address holds no user, password or key: `key_env` names a variable")]
    Secret,
    /// It ends with the version of the protocol.
    #[error("`{url}` ends with a version, which is left to the protocol: leave out `/{last}`")]
    Version {
        /// The address.
        url: String,
        /// What is to be left out.
        last: String,
    },
    /// There are too many.
    #[error("there are more than {MOST} addresses")]
    TooMany,
}

/// Whether an endpoint may be at this address.
///
/// # Errors
///
/// Why not.
pub fn check_address(url: &str) -> Result<(), AddressError> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let authority = rest.map(|rest| rest.split('/').next().unwrap_or_default()).unwrap_or_default();
    if authority.is_empty() || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(AddressError::None { url: url.to_owned() });
    }
    if authority.contains('@') || url.contains(['?', '#']) {
        return Err(AddressError::Secret);
    }
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if matches!(last, "v1" | "v1beta" | "v1alpha") {
        return Err(AddressError::Version { url: url.to_owned(), last: last.to_owned() });
    }
    Ok(())
}

/// Where a file of addresses leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileReplicas {
    /// The addresses.
    pub urls: Vec<String>,
    /// Whether a key may be sent there: the file was read as one that only its owner can write.
    pub keyed: bool,
}

/// What a file of addresses says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaList {
    /// The addresses, each once, in order.
    pub urls: Vec<String>,
    /// Lines that are none, by number from 1: the others hold.
    pub left_out: Vec<(usize, AddressError)>,
}

impl ReplicaList {
    /// Reads the lines of a file. Empty ones, and those that begin with `#`, say nothing.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || list.urls.iter().any(|url| url == line) {
                continue;
            }
            match check_address(line) {
                Err(error) => list.left_out.push((index + 1, error)),
                Ok(()) if list.urls.len() >= MOST => {
                    list.left_out.push((index + 1, AddressError::TooMany));
                    break;
                }
                Ok(()) => list.urls.push(line.to_owned()),
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_addresses_reads_line_by_line_and_one_bad_line_spoils_no_other() {
        let text = "# vLLM\n\n http://node7:8000 \nhttp://node8:8000/\nhttp://node7:8000\nnode9:8000\nhttp://key@node9\n\
                    http://node9:8000/v1\r\nhttps://node9/deep\r\n";
        let list = ReplicaList::read(text);
        assert_eq!(list.urls, ["http://node7:8000", "http://node8:8000/", "https://node9/deep"]);
        let lines: Vec<usize> = list.left_out.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [6, 7, 8]);
        assert_eq!(ReplicaList::read(""), ReplicaList::default());
    }

    #[test]
    fn no_file_names_more_addresses_than_there_can_be() {
        let text: String = (0..MOST + 10).map(|index| format!("http://node{index}\n")).collect();
        let list = ReplicaList::read(&text);
        assert_eq!((list.urls.len(), &list.left_out[..]), (MOST, &[(MOST + 1, AddressError::TooMany)][..]));
    }
}
